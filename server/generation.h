// Generation: one call from admission to its end, without gRPC: n sequences submitted to the
// engine, their tokens turned into fox.v1 events. Engine outputs arrive on the engine's thread and
// are only queued there; the delivery pool does the rest, one call never on two threads at once.
// Read token_stream_reactor.h next: a consumer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fox/v1/inference.pb.h"
#include "server/server_core.h"
#include "server/text_assembler.h"

namespace fox {

// Where a call's events go. Called by one thread at a time; must not block.
class GenerationConsumer {
 public:
  virtual ~GenerationConsumer() = default;
  // `tokens` of `sequence` are in this event: EngineThread::Acknowledge them when the reader has
  // it.
  virtual void Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) = 0;
  // The last call. Ok: every sequence has had its Finish.
  virtual void Done(const absl::Status& status) = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  using Convert = std::function<absl::StatusOr<GenerationSpec>()>;

  // Admits a call: `convert` runs on the admission pool. On an error (of CheckAdmission;
  // AlreadyExists) nothing was done and the consumer is never called. `deadline` is on the engine's
  // clock. The consumer must live until Done.
  static absl::StatusOr<std::shared_ptr<Generation>> Start(ServerCore& core,
                                                           const std::string& request_id,
                                                           Seconds deadline, Convert convert,
                                                           GenerationConsumer* consumer);

  // Ends the call at once; Ok: its sequences finish with ABORT. May be called from any thread.
  void Cancel(const absl::Status& status);

 private:
  struct Sequence {
    RequestId id = 0;
    int32_t index = 0;
    int32_t min_tokens = 0;
    std::unique_ptr<TextAssembler> text;  // null: neither text nor stop strings
    v1::TokenDelta delta;                 // not delivered yet
    int64_t delta_tokens = 0;
    int64_t completion_tokens = 0;
    bool delivered = false;
    Seconds first_token = kNever;
    int stop = -1;  // index of the stop string found
  };
  struct Arrival {
    size_t sequence = 0;
    RequestOutput output;
    Seconds when = 0;  // the engine stamps a step with its start; clients wait for its end
  };

  Generation(ServerCore& core, std::string request_id, Seconds deadline,
             GenerationConsumer* consumer);

  void Admit(const Convert& convert);  // on the admission pool
  void SubmitOne(size_t sequence);     // on the submission pool, the n of them side by side
  absl::Status Submit(size_t sequence);
  void Admitted(const absl::Status& status);
  void OnOutput(size_t sequence, RequestOutput out);  // on the engine's thread
  void Schedule();                                    // REQUIRES: mutex_ held
  void Pump();                                        // on the delivery pool

  // On the delivery pool.
  void Begin();
  void Take(Arrival arrival);
  void TakeToken(Sequence& sequence, const SampledToken& token);
  void Flush(Sequence& sequence, bool all);
  void End(Sequence& sequence, const Finish& finish, Seconds when);
  void Fail(const absl::Status& status);
  void Complete();
  v1::Finish FinishEvent(const Sequence& sequence, const Finish& finish) const;
  v1::PerfMetrics Timing(const Sequence& sequence, const RequestStats& stats, Seconds when) const;

  ServerCore& core_;
  const std::string request_id_;
  const Seconds deadline_;
  const Seconds arrival_;
  GenerationConsumer* const consumer_;

  // Written by admission, read by delivery after `admitted_`.
  GenerationSpec spec_;

  std::mutex mutex_;  // guards the following
  std::vector<Arrival> inbox_;
  std::vector<RequestId> ids_;  // submitted
  size_t undecided_ = 0;        // sequences whose submission has not been answered
  absl::Status refusal_;        // of the first sequence that was refused
  std::optional<absl::Status> cancelled_;
  std::optional<absl::Status> admitted_;  // set when admission has ended
  bool scheduled_ = false;

  // Used by delivery alone.
  std::vector<Sequence> sequences_;
  bool begun_ = false;
  size_t submitted_ = 0, finished_ = 0;
  absl::Status failure_;
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
};

v1::AcpStats ToWire(const AcpStats& stats);

}  // namespace fox
