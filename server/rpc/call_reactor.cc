// CallReactor: see call_reactor.h.
#include "server/rpc/call_reactor.h"

#include <string>

#include "grpc/grpc.h"

namespace fox {

StallMonitor::OnStall EndOf(grpc_call* call) {
  grpc_call_ref(call);
  return [held = std::shared_ptr<grpc_call>(call, grpc_call_unref)](const std::string& reason) {
    grpc_call_cancel_with_status(held.get(), GRPC_STATUS_ABORTED, reason.c_str(), nullptr);
  };
}

CallReactor::CallReactor(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info,
                         StallMonitor& monitor)
    : core_(core), context_(context), info_(std::move(info)) {
  writes_.emplace(monitor, EndOf(context->c_call()), info_.client);
}

void CallReactor::KeepRequest(const grpc::ByteBuffer* request) {
  const MutexLock lock(answer_mutex_);
  request_ = TakeBytes(request);
}

std::optional<grpc::ByteBuffer> CallReactor::TakeRequest() {
  const MutexLock lock(answer_mutex_);
  if (answered_) return std::nullopt;
  grpc::ByteBuffer taken;
  taken.Swap(&request_);
  return taken;
}

void CallReactor::Answer(absl::Status status, const google::protobuf::Message* message) {
  if (!Claim()) return;
  if (status.ok()) {
    SerializeMessage(*message, &bytes_);
    if (!info_.share.Hold(static_cast<int64_t>(bytes_.Length()))) status = AnswersUnread();
  }
  End(status, status.ok() ? &bytes_ : nullptr);
}

void CallReactor::OnDone() {
  writes_.reset();
  info_.share = CallBudget::Share();
  self_ = nullptr;
}

bool CallReactor::Claim() {
  const MutexLock lock(answer_mutex_);
  request_.Clear();
  return !std::exchange(answered_, true);
}

absl::Status CallReactor::WhyCancelled() const {
  return writes_->stalled() ? absl::AbortedError("the reader has stalled")
                            : absl::CancelledError("the client went away");
}

void CallReactor::End(const absl::Status& status, const grpc::ByteBuffer* message) {
  writes_->Begin();
  const grpc::Status end = EndStatus(status, core_, context_);
  if (message == nullptr) return Finish(end);
  StartWriteAndFinish(message, grpc::WriteOptions(), end);
}

}  // namespace fox
