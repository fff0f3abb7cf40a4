// Generation: one call from admission to its end, without gRPC: its n sequences submitted to the
// engine together, their outputs handed to SequenceEvents. Outputs arrive on the engine's thread
// and are only queued there; the delivery pool does the rest, one call never on two threads at
// once. Read sequence_events.h next.
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
#include "server/sequence_events.h"
#include "server/server_core.h"

namespace fox {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  using Convert = std::function<absl::StatusOr<GenerationSpec>()>;

  // Starts a call that ServerCore::CheckAdmission let in: `convert` runs on the admission pool.
  // AlreadyExists: a call with this id is running; nothing was done and the consumer is never
  // called. `deadline` is on the engine's clock. The consumer must live until Done.
  static absl::StatusOr<std::shared_ptr<Generation>> Start(ServerCore& core,
                                                           const std::string& request_id,
                                                           Seconds deadline, Convert convert,
                                                           GenerationConsumer* consumer);

  // Ends the call at once; Ok: its sequences finish with ABORT. May be called from any thread.
  void Cancel(const absl::Status& status);

 private:
  struct InboxEntry {
    RequestOutput output;
    Seconds when = 0;  // the engine stamps a step with its start; clients wait for its end
  };

  Generation(ServerCore& core, std::string request_id, Seconds deadline,
             GenerationConsumer* consumer);

  void Admit(const Convert& convert);           // on the admission pool
  void Submit(GenerationSpec spec);             // likewise
  void OnAdmitted(const absl::Status& status);  // before any output, on the engine's thread; or
                                                // where the call ended before that
  void OnOutput(RequestOutput output);          // on the engine's thread
  void ScheduleDelivery() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // On the delivery pool.
  void DrainInbox();
  void Begin();
  void Consume(const InboxEntry& entry);
  void Fail(const absl::Status& status);
  void Complete();

  ServerCore& core_;
  const std::string request_id_;
  const Seconds deadline_;
  const Seconds arrival_;
  GenerationConsumer* const consumer_;

  // Written by admission, then used by delivery alone.
  GenerationSpec spec_;
  v1::GenerateDelta prompt_event_;
  int64_t prompt_tokens_ = 0;
  std::vector<SequenceEvents> sequences_;

  Mutex mutex_;
  std::vector<InboxEntry> inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestId> running_ ABSL_GUARDED_BY(mutex_);  // taken by the engine
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  bool scheduled_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by delivery alone.
  bool begun_ = false;
  size_t finished_ = 0;
  absl::Status failure_;
};

}  // namespace fox
