// Generation: one call from admission to its end, without gRPC: its n sequences submitted to the
// engine together, their outputs handed to SequenceEvents. Outputs arrive on the engine's thread
// and are only staged there; the call's lane of the delivery pool does the rest. Read
// sequence_events.h next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/mutex.h"
#include "server/calls/call_info.h"
#include "server/calls/sequence_events.h"
#include "server/calls/server_core.h"

namespace fox {

class Generation final : public OutputReceiver,
                         public RunningCall,
                         public std::enable_shared_from_this<Generation> {
 public:
  using Convert = std::function<absl::StatusOr<GenerationSpec>()>;

  // Starts a call: `convert` runs on the admission pool, and the call is registered under the id
  // that it gives. Never fails: refusals arrive by Done, AlreadyExists where a call with this id is
  // running. The consumer and `info` must live until Done. `has_turn`: this is a turn of the client
  // on the admission pool, and `convert` runs before Start returns.
  static std::shared_ptr<Generation> Start(ServerCore& core, const CallInfo& info, Convert convert,
                                           GenerationConsumer* consumer, bool has_turn = false);

  void Cancel(const absl::Status& status) override;
  void Abandon(const absl::Status& status) override;

 private:
  Generation(ServerCore& core, const CallInfo& info, Convert convert, GenerationConsumer* consumer);

  // For the log, over all sequences.
  struct Totals {
    void Add(const SequenceEvents& sequence, const RequestStats& stats);

    int64_t completion_tokens = 0, preemptions = 0, peak_pages = 0, pages_evicted = 0;
    Seconds scheduled = kNever, first_token = kNever;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;  // of the last one
  };

  void Admit();   // on the admission pool
  void Submit();  // likewise
  // Before any output, on the engine's thread; or where the call ended before that.
  void OnAdmitted(const absl::Status& status);
  // Tells the lane that the call runs or, with an error, that it is over.
  void Begin(const absl::Status& status);

  // On the call's lane.
  void Receive(RequestOutput output, Seconds when) override;
  void Consume(const RequestOutput& output, Seconds when);
  void Fail(const absl::Status& status);  // Ok: it goes on
  void Complete();
  void LogEnd(Seconds end) const;

  ServerCore& core_;
  const CallInfo& info_;
  GenerationConsumer* const consumer_;
  const size_t lane_;

  // Written by admission, then used by the lane alone.
  GenerationSpec spec_;   // its sequences go to the engine
  bool entered_ = false;  // into the registry
  v1::GenerateDelta prompt_event_;
  int64_t prompt_tokens_ = 0;
  std::vector<SequenceEvents> sequences_;
  std::vector<TokenTimes> times_;  // of the sequences

  Mutex mutex_;
  Convert convert_ ABSL_GUARDED_BY(mutex_);  // null once it was taken
  // Whether admission has come to its end, or Cancel was faster: then the call ends at once, and
  // admission, which cannot be interrupted, finds it so and leaves it alone.
  bool decided_ ABSL_GUARDED_BY(mutex_) = false;
  // Given to the engine: admission is through with the call.
  std::vector<RequestId> submitted_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);

  // Used by the lane alone.
  size_t finished_ = 0;
  bool done_ = false;
  absl::Status failure_;
  Totals totals_;
};

}  // namespace fox
