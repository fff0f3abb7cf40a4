// AnswerReactor: the end of every call with one answer. UnaryReactor: one whose answer is what a
// Generation gave, merged, sent when the last sequence has ended. Read generation.h next.
#pragma once

#include <utility>

#include "server/rpc/call_handle.h"

namespace fox {

// Deletes itself, and gives back the call's share, when the library is done with the call: its
// answer was taken, its reader stalled or its client went away.
class AnswerReactor : public grpc::ServerUnaryReactor {
 public:
  AnswerReactor(ServerCore& core, grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
                CallInfo info)
      : call_(core, context, std::move(info)), response_(response) {}

  // Ends the call: `message` when the status is Ok. Called once, on any thread; `this` may be gone
  // afterwards. ResourceExhausted instead where the budget does not hold the answer.
  void Answer(absl::Status status, const google::protobuf::Message& message);

  const CallInfo& info() const { return call_.info(); }
  // Nobody waits for the answer any more; it has to be given all the same. Any thread.
  bool cancelled() const { return call_.cancelled(); }

  void OnCancel() override { call_.OnCancel(); }
  void OnDone() override { delete this; }

 protected:
  CallHandle call_;

 private:
  grpc::ByteBuffer* const response_;
};

// Subclasses merge the events.
template <class Message>
class UnaryReactor : public AnswerReactor, public GenerationConsumer {
 public:
  using AnswerReactor::AnswerReactor;

  // Either of them once.
  void Run(Generation::Convert convert) { call_.Run(std::move(convert), this); }
  void Refuse(const absl::Status& status) { Answer(status, merged_); }

  void Deliver(v1::GenerateDelta event, RequestId, int64_t) final {
    if (full_) return;
    const int64_t bytes = HeldBytes(event);
    full_ = !call_.Hold(bytes);
    held_ += bytes;
    if (full_) return call_.Cancel(AnswersUnread());
    Merge(std::move(event));
  }
  void Done(const absl::Status& status) final {
    call_.Release();
    const Message merged = std::move(merged_);  // not kept beside what is sent
    call_.Drop(held_);
    Answer(full_ ? AnswersUnread() : status, merged);
  }

 protected:
  virtual void Merge(v1::GenerateDelta event) = 0;
  Message merged_;

 private:
  int64_t held_ = 0;
  bool full_ = false;  // the budget: what follows is dropped
};

// Merges deltas into completions.
class GenerateReactor final : public UnaryReactor<v1::GenerateResponse> {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Merge(v1::GenerateDelta event) override;
};

// Merges the prompt's log-probabilities.
class ScoreReactor final : public UnaryReactor<v1::ScoreResponse> {
 public:
  using UnaryReactor::UnaryReactor;

 private:
  void Merge(v1::GenerateDelta event) override;
};

}  // namespace fox
