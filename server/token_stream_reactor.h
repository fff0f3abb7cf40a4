// TokenStreamReactor: the writing end of GenerateStream. One write is in flight at a time; tokens
// are acknowledged to the engine when their write is done, so a reader that stops reading pauses
// its own sequence and nothing else. A cancelled call cancels its sequences at once.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "server/generation.h"
#include "server/wire.h"

namespace fox {

// Deletes itself when the call has ended.
class TokenStreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                                 public GenerationConsumer {
 public:
  TokenStreamReactor(ServerCore& core, grpc::CallbackServerContext* context);

  // Called once, with what Generation::Start gave for this consumer.
  void Started(absl::StatusOr<std::shared_ptr<Generation>> generation);

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
  // Starts the next write or, when all is said, ends the call. REQUIRES: mutex_ held.
  void Advance(std::unique_lock<std::mutex> lock);

  ServerCore& core_;
  grpc::CallbackServerContext* const context_;

  std::mutex mutex_;  // guards the following
  std::shared_ptr<Generation> generation_;
  std::deque<Event> pending_;
  grpc::ByteBuffer writing_;
  RequestId writing_sequence_ = 0;
  int64_t writing_tokens_ = 0;
  bool write_in_flight_ = false;
  bool broken_ = false;  // the client is gone: events are dropped
  bool cancelled_ = false;
  bool done_ = false;
  absl::Status status_;
};

}  // namespace fox
