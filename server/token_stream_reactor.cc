// TokenStreamReactor: see token_stream_reactor.h.
#include "server/token_stream_reactor.h"

#include <utility>

namespace fox {
namespace {

// Merges `next` into `last` when both are deltas of one sequence: a slow reader gets fewer, larger
// messages.
bool MergeDelta(const v1::GenerateDelta& next, v1::GenerateDelta* last) {
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

void TokenStreamReactor::Started(const absl::StatusOr<std::shared_ptr<Generation>>& generation) {
  if (!generation.ok()) return Done(generation.status());
  call_.Set(*generation);
}

void TokenStreamReactor::Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) {
  Action action = Action::kNone;
  {
    const MutexLock lock(mutex_);
    if (broken_) return;
    if (!pending_.empty() && MergeDelta(event, &pending_.back().message)) {
      pending_.back().tokens += tokens;
      return;
    }
    pending_.push_back({std::move(event), sequence, tokens});
    action = NextAction();
  }
  Perform(action);
}

void TokenStreamReactor::Done(const absl::Status& status) {
  call_.Release();
  Action action = Action::kNone;
  {
    const MutexLock lock(mutex_);
    done_ = true;
    status_ = status;
    // After a failure only the status matters; text that was not written yet is not waited for.
    if (!status.ok()) pending_.clear();
    action = NextAction();
  }
  Perform(action);
}

void TokenStreamReactor::OnWriteDone(bool ok) {
  Action action = Action::kNone;
  {
    const MutexLock lock(mutex_);
    write_in_flight_ = false;
    if (!ok) {
      broken_ = true;
      pending_.clear();
    } else if (writing_tokens_ > 0) {
      core_.engine.Acknowledge(writing_sequence_, writing_tokens_);
    }
    action = NextAction();
  }
  Perform(action);
}

void TokenStreamReactor::OnCancel() {
  {
    const MutexLock lock(mutex_);
    broken_ = true;
    pending_.clear();
  }
  call_.Cancel();
}

TokenStreamReactor::Action TokenStreamReactor::NextAction() {
  if (write_in_flight_) return Action::kNone;
  if (pending_.empty()) return done_ ? Action::kFinish : Action::kNone;
  const Event event = std::move(pending_.front());
  pending_.pop_front();
  writing_.Clear();
  SerializeMessage(event.message, &writing_);
  writing_sequence_ = event.sequence;
  writing_tokens_ = event.tokens;
  write_in_flight_ = true;
  return Action::kWrite;
}

void TokenStreamReactor::Perform(Action action) {
  if (action == Action::kWrite) StartWrite(&writing_);
  if (action == Action::kFinish) Finish(EndStatus(status_, core_, context_));
}

}  // namespace fox
