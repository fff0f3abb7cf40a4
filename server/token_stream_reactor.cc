// TokenStreamReactor: see token_stream_reactor.h.
#include "server/token_stream_reactor.h"

#include <utility>

namespace fox {
namespace {

// Joins `next` to `last` when both are deltas of one sequence: a slow reader gets fewer, larger
// messages.
bool Join(v1::GenerateDelta* last, const v1::GenerateDelta& next) {
  if (!last->has_delta() || !next.has_delta()) return false;
  v1::TokenDelta* delta = last->mutable_delta();
  if (delta->index() != next.delta().index()) return false;
  delta->mutable_text()->append(next.delta().text());
  delta->mutable_token_ids()->MergeFrom(next.delta().token_ids());
  delta->mutable_logprobs()->MergeFrom(next.delta().logprobs());
  return true;
}

}  // namespace

TokenStreamReactor::TokenStreamReactor(ServerCore& core, grpc::CallbackServerContext* context)
    : core_(core), context_(context) {}

void TokenStreamReactor::Started(absl::StatusOr<std::shared_ptr<Generation>> generation) {
  if (!generation.ok()) return Done(generation.status());
  bool cancelled = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!done_) generation_ = *generation;  // it may have ended by now
    cancelled = cancelled_;
  }
  if (cancelled) (*generation)->Cancel(absl::CancelledError("the client went away"));
}

void TokenStreamReactor::Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (broken_) return;
  if (!pending_.empty() && Join(&pending_.back().message, event)) {
    pending_.back().tokens += tokens;
    return;
  }
  pending_.push_back({std::move(event), sequence, tokens});
  Advance(std::move(lock));
}

void TokenStreamReactor::Done(const absl::Status& status) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_ = true;
  status_ = status;
  generation_ = nullptr;
  // After a failure only the status matters; text that was not written yet is not waited for.
  if (!status.ok()) pending_.clear();
  Advance(std::move(lock));
}

void TokenStreamReactor::OnWriteDone(bool ok) {
  std::unique_lock<std::mutex> lock(mutex_);
  write_in_flight_ = false;
  if (!ok) {
    broken_ = true;
    pending_.clear();
  } else if (writing_tokens_ > 0) {
    core_.engine.Acknowledge(writing_sequence_, writing_tokens_);
  }
  Advance(std::move(lock));
}

void TokenStreamReactor::Advance(std::unique_lock<std::mutex> lock) {
  if (write_in_flight_) return;
  if (!pending_.empty()) {
    Event event = std::move(pending_.front());
    pending_.pop_front();
    writing_.Clear();
    SerializeMessage(event.message, &writing_);
    writing_sequence_ = event.sequence;
    writing_tokens_ = event.tokens;
    write_in_flight_ = true;
    lock.unlock();
    StartWrite(&writing_);
  } else if (done_) {
    const absl::Status status = status_;
    lock.unlock();
    Finish(EndStatus(status, core_, context_));  // `this` may be gone after it
  }
}

void TokenStreamReactor::OnCancel() {
  std::shared_ptr<Generation> generation;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    broken_ = true;
    pending_.clear();
    generation = generation_;
  }
  if (generation != nullptr) generation->Cancel(absl::CancelledError("the client went away"));
}

}  // namespace fox
