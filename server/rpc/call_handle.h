// CallHandle: the part of a call that does not depend on its kind; every reactor owns one until
// OnDone. It holds what the call takes from the budget, has its writes watched, and knows its
// Generation: gRPC's threads start and cancel it while its lane ends it; whatever comes first, a
// generation whose client has gone is cancelled once, and an ended one is let go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/mutex.h"
#include "server/calls/call_info.h"
#include "server/calls/generation.h"
#include "server/calls/stall_monitor.h"
#include "server/rpc/wire.h"

namespace fox {

// Methods may be called from any thread; Hold and Drop by one at a time.
class CallHandle {
 public:
  CallHandle(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info);

  const CallInfo& info() const { return info_; }
  // A write or the call's status goes out, and has gone.
  StallMonitor::Watch& writes() { return writes_; }

  // Starts the call's generation; once at most. It may end before this returns.
  void Run(Generation::Convert convert, GenerationConsumer* consumer);
  // Ends the generation, now or as soon as it is known. Only the first reason counts.
  void Cancel(const absl::Status& reason);
  // The library says that the call is over: the client went away, or the reader has stalled.
  void OnCancel();
  bool cancelled() const;
  // The generation has ended.
  void Release();

  // Takes `bytes` of the budget for what waits to be written; the request's own are given back.
  // False: the budget is full, but they count all the same until Drop.
  bool Hold(int64_t bytes);
  void Drop(int64_t bytes);
  // Ends the call though a write hangs: nothing more is written, and OnCancel follows.
  void Abandon(const absl::Status& status);
  // What the client is told at the end.
  grpc::Status End(const absl::Status& status) const { return EndStatus(status, core_, context_); }

 private:
  ServerCore& core_;
  grpc::CallbackServerContext* const context_;
  CallInfo info_;
  int64_t held_ = 0;
  StallMonitor::Watch writes_;

  mutable Mutex mutex_;
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

// What a delivered event takes in memory.
inline int64_t HeldBytes(const v1::GenerateDelta& event) {
  return 4 * static_cast<int64_t>(event.ByteSizeLong());  // log-probabilities: 40 bytes for 10
}

// ResourceExhausted: what waits to be read fills the budget.
absl::Status AnswersUnread();

}  // namespace fox
