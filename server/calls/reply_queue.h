// ReplyQueue: what a call answers, between its generations and the endpoint that writes it. One
// write is in flight at a time; tokens are acknowledged to the engine when their write is done, so
// a reader that stops reading pauses its own sequences and nothing else. What comes next is chosen
// under the lock and done without it. Read rpc/generation_reactor.h or http/completion_call.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/calls/generation.h"

namespace fox {

// Base of the calls of both endpoints. Each keeps events in a form of its own.
class ReplyQueue : public GenerationConsumer {
 public:
  absl::Status Deliver(size_t prompt, v1::GenerateDelta event, RequestId sequence,
                       int64_t tokens) final;
  void Done(const absl::Status& status) final;

 protected:
  using Tokens = std::vector<std::pair<RequestId, int64_t>>;
  // What a write takes of the events that are kept.
  struct Taken {
    Tokens tokens;      // of sequences
    int64_t kept = 0;   // bytes: so many less are kept
    int64_t bytes = 0;  // of the write
  };

  explicit ReplyQueue(EngineThread& engine) : engine_(engine) {}

  // Before the first generation starts. `stream`: events are written as they come, else once, at
  // the end. `share` pays for what waits to be written; from now on it is used under the lock.
  void Expect(size_t generations, bool stream, CallBudget::Share* share);
  // A generation of this consumer was started: it is cancelled when the call fails.
  void Attach(const std::shared_ptr<Generation>& started);

  // The bytes of Write were taken: the next one may follow.
  void Written();
  // Something is there to write, beside events.
  void Wake();
  // The reader is gone or refused: the generations are cancelled, and only the end is written.
  void Close(const absl::Status& reason);
  absl::Status failure();  // Ok: the call goes on

  int64_t kept() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return kept_; }
  bool all_done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; }

  Mutex mutex_;

 private:
  // Keeps an event until it is written. Returns how many bytes more are kept.
  virtual int64_t Keep(size_t prompt, v1::GenerateDelta event, RequestId sequence, int64_t tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual bool empty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Makes the next write; where empty() after it and all generations are done, it is the last one.
  virtual Taken Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // The call has failed: what is kept is not written any more.
  virtual void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Without the lock, one at a time: writes what was taken. Written follows.
  virtual void Write() = 0;
  // Likewise: writes the last message, or the failure. Nothing follows; `this` may be gone
  // afterwards.
  virtual void End(const absl::Status& failed) = 0;
  // A write hangs, and what it holds is needed: ends the call for its reader. Close follows.
  virtual void Abandon(const absl::Status& status) = 0;

  // What comes next.
  struct Step {
    enum { kNothing, kWrite, kEnd } action = kNothing;
    absl::Status failure;
    std::vector<std::shared_ptr<Generation>> cancelled;
  };
  void Fail(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const Step& step);

  EngineThread& engine_;
  CallBudget::Share* share_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stream_ ABSL_GUARDED_BY(mutex_) = false;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 1;    // generations not done; 1 before they are known
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first one
  std::vector<std::shared_ptr<Generation>> generations_ ABSL_GUARDED_BY(mutex_);
  int64_t kept_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
  Taken in_flight_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
