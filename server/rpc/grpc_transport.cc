// GrpcTransport: the library's reactions become a call's, and back. See grpc_transport.h.
#include "server/rpc/grpc_transport.h"

#include <utility>

#include "grpc/grpc.h"
#include "kernels/core/check.h"

namespace fox {

StallMonitor::OnStall EndOf(grpc_call* call) {
  grpc_call_ref(call);
  return [held = std::shared_ptr<grpc_call>(call, grpc_call_unref)](const std::string& reason) {
    grpc_call_cancel_with_status(held.get(), GRPC_STATUS_ABORTED, reason.c_str(), nullptr);
  };
}

GrpcTransport::GrpcTransport(grpc::CallbackServerContext* context, StallMonitor& monitor,
                             uint64_t client)
    : context_(context) {
  writes_.emplace(monitor, EndOf(context->c_call()), client);
}

void GrpcTransport::StartCall(ServerCore& core, CallInfo info, Call::Work work,
                              std::unique_ptr<Format> format, int64_t bytes) {
  FOX_CHECK(call_ == nullptr && writes_.has_value());
  call_ = std::make_shared<Call>(core, std::move(info), work, std::move(format), self_);
  // It may end before this returns, but the library's reactions come after the handler.
  call_->Start(bytes);
}

void GrpcTransport::AnswerNow(ServerCore& core, CallInfo info, absl::Status status,
                              std::string message) {
  FOX_CHECK(call_ == nullptr && writes_.has_value());
  share_ = std::move(info.share);
  const auto bytes = static_cast<int64_t>(message.size());
  if (status.ok() && !share_.Hold(bytes)) {
    status = share_.Exceeds(bytes, 0) ? AnswerTooLarge() : AnswersUnread();
  }
  EndAnswer(status, std::move(message), core.RetryAfterMs());
}

void GrpcTransport::Write(std::string bytes) {
  FOX_CHECK(writes_.has_value());  // OnDone comes after the end
  begun_ = true;
  writes_->BeginWrite();
  bytes_ = ToByteBuffer(std::move(bytes));
  StartWrite(&bytes_);
}

void GrpcTransport::EndAnswer(const absl::Status& status, std::string bytes,
                              int64_t retry_after_ms) {
  FOX_CHECK(writes_.has_value());
  writes_->BeginWrite();
  const grpc::Status end = EndStatus(status, retry_after_ms, context_);
  // A stream may have written its last message before. A unary answer may be a message of no bytes.
  if (!status.ok() || (begun_ && bytes.empty())) return Finish(end);
  bytes_ = ToByteBuffer(std::move(bytes));
  StartWriteAndFinish(&bytes_, grpc::WriteOptions(), end);
}

void GrpcTransport::AbandonReader(const absl::Status& status) {
  const grpc::Status out = ToGrpc(status);
  grpc_call_cancel_with_status(context_->c_call(), static_cast<grpc_status_code>(out.error_code()),
                               out.error_message().c_str(), nullptr);
}

void GrpcTransport::OnWriteDone(bool ok) {
  FOX_CHECK(call_ != nullptr && writes_.has_value());
  writes_->EndWrite();
  if (!ok) call_->OnClosed(WhyCancelled());
  call_->OnWritten();
}

void GrpcTransport::OnCancel() {
  if (call_ != nullptr) call_->OnClosed(WhyCancelled());
}

void GrpcTransport::OnDone() {
  writes_.reset();
  share_ = CallBudget::Share();
  if (call_ != nullptr) call_->OnReleased();
  call_ = nullptr;
  self_ = nullptr;
}

absl::Status GrpcTransport::WhyCancelled() const {
  return writes_->stalled() ? absl::AbortedError("the reader has stalled")
                            : absl::CancelledError("the client went away");
}

}  // namespace fox
