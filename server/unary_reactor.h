// UnaryReactor: the reading end of a Generation whose answer is one message: events are merged and
// sent when the last sequence has ended. Invariant: Finish is called once, from Done.
#pragma once

#include <memory>

#include "server/call_handle.h"
#include "server/wire.h"

namespace fox {

// Deletes itself when the call has ended. Subclasses merge the events.
class UnaryReactor : public grpc::ServerUnaryReactor, public GenerationConsumer {
 public:
  UnaryReactor(ServerCore& core, grpc::CallbackServerContext* context, grpc::ByteBuffer* response);

  // Called once, with what Generation::Start gave for this consumer.
  void Started(const absl::StatusOr<std::shared_ptr<Generation>>& generation);

  void Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override;
  void Done(const absl::Status& status) override;
  void OnCancel() override { call_.Cancel(); }
  void OnDone() override { delete this; }

 protected:
  virtual void Merge(v1::GenerateDelta event) = 0;
  virtual const google::protobuf::Message& Response() = 0;

 private:
  ServerCore& core_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  CallHandle call_;
};

// Merges deltas into completions.
class GenerateReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Merge(v1::GenerateDelta event) override;
  const google::protobuf::Message& Response() override { return merged_; }
  v1::GenerateResponse merged_;
};

// Merges the prompt's log-probabilities.
class ScoreReactor final : public UnaryReactor {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Merge(v1::GenerateDelta event) override;
  const google::protobuf::Message& Response() override { return merged_; }
  v1::ScoreResponse merged_;
};

}  // namespace fox
