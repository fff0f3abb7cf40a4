// TokenStreamReactor: the writing end of GenerateStream. One write is in flight at a time; tokens
// are acknowledged to the engine when their write is done, so a reader that stops reading pauses
// its own sequence and nothing else. A cancelled call cancels its sequences at once.
#pragma once

#include <utility>
#include <vector>

#include "server/rpc/call_handle.h"

namespace fox {

// Deletes itself, and gives back the call's share, when the call has ended.
class TokenStreamReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public GenerationConsumer {
 public:
  TokenStreamReactor(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info);

  // Either of them once.
  void Run(Generation::Convert convert) { call_.Run(std::move(convert), this); }
  void Refuse(const absl::Status& status) { Done(status); }

  void Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override;
  void Done(const absl::Status& status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 protected:
  // The message of an event. False: it has none, and what it holds of the budget stays so. In
  // order, one thread at a time.
  virtual bool Encode(v1::GenerateDelta&& event, grpc::ByteBuffer* out) {
    SerializeMessage(event, out);
    return true;
  }

 private:
  struct Load {
    RequestId sequence = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;  // held of the budget
  };
  struct Event {
    v1::GenerateDelta message;
    Load load;
  };
  // Chosen under the lock and performed without it: `this` may be gone after kFinish.
  enum class Action { kNone, kWrite, kFinish };
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Action action) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServerCore& core_;
  CallHandle call_;

  Mutex mutex_;                                         // also for the call's Hold and Drop
  std::vector<Event> pending_ ABSL_GUARDED_BY(mutex_);  // at most one delta a sequence
  Load writing_ ABSL_GUARDED_BY(mutex_);
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  // The client is gone: events are dropped.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;

  grpc::ByteBuffer bytes_;  // of the write in flight, or about to be
  absl::Status status_;     // written by Done, read by the action kFinish after it
};

}  // namespace fox
