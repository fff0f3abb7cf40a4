// CallHandle: see call_handle.h.
#include "server/rpc/call_handle.h"

#include <string>
#include <utility>

#include "grpc/grpc.h"
#include "server/rpc/status_mapping.h"

namespace fox {
namespace {

constexpr int64_t kChunk = 4096;  // the budget is shared: it is asked once in many tokens

// Ends the call for its reader, whenever that is.
StallMonitor::OnStall EndOf(grpc_call* call) {
  grpc_call_ref(call);
  return [held = std::shared_ptr<grpc_call>(call, grpc_call_unref)](const std::string& reason) {
    grpc_call_cancel_with_status(held.get(), GRPC_STATUS_ABORTED, reason.c_str(), nullptr);
  };
}

}  // namespace

CallHandle::CallHandle(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info)
    : core_(core),
      context_(context),
      info_(std::move(info)),
      writes_(core.stalls(), EndOf(context->c_call())) {}

void CallHandle::Run(Generation::Convert convert, GenerationConsumer* consumer) {
  std::shared_ptr<Generation> generation =
      Generation::Start(core_, info_, std::move(convert), consumer);
  std::optional<absl::Status> cancelled;
  {
    const MutexLock lock(mutex_);
    if (!done_) generation_ = generation;
    cancelled = cancelled_;
  }
  if (cancelled.has_value()) generation->Cancel(*cancelled);
}

void CallHandle::Cancel(const absl::Status& reason) {
  std::shared_ptr<Generation> generation;
  {
    const MutexLock lock(mutex_);
    if (cancelled_.has_value()) return;
    cancelled_ = reason;
    generation = generation_;
  }
  if (generation != nullptr) generation->Cancel(reason);
}

void CallHandle::OnCancel() {
  Cancel(writes_.stalled() ? absl::AbortedError("the reader has stalled")
                           : absl::CancelledError("the client went away"));
}

bool CallHandle::cancelled() const {
  const MutexLock lock(mutex_);
  return cancelled_.has_value();
}

void CallHandle::Release() {
  const MutexLock lock(mutex_);
  done_ = true;
  generation_ = nullptr;
}

bool CallHandle::Hold(int64_t bytes) {
  held_ += bytes;
  const int64_t more = held_ - info_.share.bytes();
  if (more <= 0) {
    if (more < -2 * kChunk) info_.share.Shrink(-more - kChunk);
    return true;
  }
  return info_.share.Grow((more + kChunk - 1) / kChunk * kChunk);
}

void CallHandle::Drop(int64_t bytes) {
  held_ -= bytes;
  const int64_t surplus = info_.share.bytes() - held_;
  if (surplus > 2 * kChunk) info_.share.Shrink(surplus - kChunk);
}

void CallHandle::Abandon(const absl::Status& status) {
  const grpc::Status out = ToGrpc(status);
  Cancel(status);
  grpc_call_cancel_with_status(context_->c_call(), static_cast<grpc_status_code>(out.error_code()),
                               out.error_message().c_str(), nullptr);
}

absl::Status AnswersUnread() {
  return absl::ResourceExhaustedError("too much waits to be read by clients");
}

}  // namespace fox
