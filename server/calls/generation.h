// Generation: one prompt from admission to its end, for any endpoint: its n sequences submitted to
// the engine together, their outputs handed to SequenceEvents. Outputs arrive on the engine's
// thread and are only staged there; the call's lane of the delivery pool does the rest. Read
// sequence_events.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/calls/call_info.h"
#include "server/calls/sequence_events.h"
#include "server/calls/server_core.h"

namespace fox {

// What a generation is made from. Dropped, with the client's message, as soon as it was converted
// or the call has ended.
class GenerationSource {
 public:
  virtual ~GenerationSource() = default;
  // Checks and tokenizes, on the admission pool. At most once.
  virtual absl::StatusOr<GenerationSpec> Convert() = 0;
};

class Generation final : public SubmissionListener,
                         public OutputReceiver,
                         public RunningCall,
                         public std::enable_shared_from_this<Generation> {
 public:
  // Starts a call: in the client's turn on the admission pool, `source` is converted and the call
  // registered under the id of its spec. Never fails: refusals arrive by Done, AlreadyExists where
  // a call with this id is running. The consumer is held until Done; `info` must live as long.
  static std::shared_ptr<Generation> Start(ServerCore& core, const CallInfo& info,
                                           std::unique_ptr<GenerationSource> source,
                                           std::shared_ptr<GenerationConsumer> consumer);
  // The same for what was converted already: this is a turn of the client.
  static std::shared_ptr<Generation> StartConverted(ServerCore& core, const CallInfo& info,
                                                    absl::StatusOr<GenerationSpec> spec,
                                                    std::shared_ptr<GenerationConsumer> consumer);

  void Cancel(const absl::Status& status) override;
  void Abandon(const absl::Status& status) override;

 private:
  Generation(ServerCore& core, const CallInfo& info, std::unique_ptr<GenerationSource> source,
             std::shared_ptr<GenerationConsumer> consumer);

  // For the log, over all sequences.
  struct Totals {
    void Add(const SequenceEvents& sequence, const RequestStats& stats);

    int64_t completion_tokens = 0, preemptions = 0, peak_pages = 0, pages_evicted = 0;
    Seconds scheduled = kNever, first_token = kNever;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;  // of the last one
  };

  // On the admission pool.
  void Convert();
  void Admit(absl::StatusOr<GenerationSpec> spec);
  // In the client's turn on the grammar queue. False: it takes more than `effort`.
  bool CompileGrammar(GrammarCompiler::Effort effort);
  absl::StatusOr<std::shared_ptr<void>> PayForGrammar(int64_t bytes) const;
  void Submit(const std::shared_ptr<const Grammar>& grammar);  // null: any answer
  // On the engine's thread; OnSubmitted also where the call ended before it was submitted.
  void OnSubmitted(const absl::Status& status) override;
  void OnOutput(RequestOutput output) override;
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
  std::shared_ptr<GenerationConsumer> consumer_;  // null after Done
  const size_t lane_;

  // Written by admission, then used by the lane alone.
  GenerationSpec spec_;   // its sequences go to the engine
  bool entered_ = false;  // into the registry
  v1::GenerateDelta prompt_event_;
  int64_t prompt_tokens_ = 0;
  std::vector<SequenceEvents> sequences_;
  std::vector<TokenTimes> times_;  // of the sequences

  Mutex mutex_;
  std::unique_ptr<GenerationSource> source_ ABSL_GUARDED_BY(mutex_);  // null once it was taken
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
