// TokenStreamReactor: the writing end of GenerateStream. One write is in flight at a time; tokens
// are acknowledged to the engine when their write is done, so a reader that stops reading pauses
// its own sequence and nothing else. A cancelled call cancels its sequences at once.
#pragma once

#include <deque>
#include <memory>

#include "server/call_handle.h"
#include "server/wire.h"

namespace fox {

// Deletes itself when the call has ended.
class TokenStreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                                 public GenerationConsumer {
 public:
  TokenStreamReactor(ServerCore& core, grpc::CallbackServerContext* context);

  // Called once, with what Generation::Start gave for this consumer.
  void Started(const absl::StatusOr<std::shared_ptr<Generation>>& generation);

  void Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override;
  void Done(const absl::Status& status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  struct Event {
    v1::GenerateDelta message;
    RequestId sequence;
    int64_t tokens;
  };
  // Chosen under the lock and performed without it: `this` may be gone after kFinish.
  enum class Action { kNone, kWrite, kFinish };
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Action action) ABSL_LOCKS_EXCLUDED(mutex_);

  ServerCore& core_;
  grpc::CallbackServerContext* const context_;
  CallHandle call_;

  Mutex mutex_;
  std::deque<Event> pending_ ABSL_GUARDED_BY(mutex_);
  RequestId writing_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t writing_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  // The client is gone: events are dropped.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;

  grpc::ByteBuffer writing_;  // of the write in flight, or about to be
  absl::Status status_;       // written by Done, read by the action kFinish after it
};

}  // namespace fox
