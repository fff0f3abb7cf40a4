// TokenStreamReactor: see token_stream_reactor.h.
#include "server/rpc/token_stream_reactor.h"

#include <algorithm>
#include <utility>

namespace fox {
namespace {

// Appends one delta of a sequence to another: a slow reader gets fewer, larger messages.
void Append(const v1::TokenDelta& next, v1::TokenDelta* last) {
  last->mutable_text()->append(next.text());
  last->mutable_token_ids()->MergeFrom(next.token_ids());
  last->mutable_logprobs()->MergeFrom(next.logprobs());
}

}  // namespace

TokenStreamReactor::TokenStreamReactor(ServerCore& core, grpc::CallbackServerContext* context,
                                       CallInfo info)
    : core_(core), call_(core, context, std::move(info)) {}

void TokenStreamReactor::Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) {
  const int64_t bytes = HeldBytes(event);
  Action action = Action::kNone;
  bool full = false, hangs = false;
  {
    const MutexLock lock(mutex_);
    if (broken_) return;
    const auto same = std::find_if(pending_.begin(), pending_.end(), [&](const Event& last) {
      return last.load.sequence == sequence && last.message.has_delta() && event.has_delta();
    });
    if (same == pending_.end()) {
      pending_.push_back({std::move(event), {sequence, tokens, bytes}});
    } else {
      Append(event.delta(), same->message.mutable_delta());
      same->load.tokens += tokens;
      same->load.bytes += bytes;
    }
    full = !call_.Hold(bytes);
    if (full) {
      broken_ = true;
      status_ = AnswersUnread();
      DropPending();
      hangs = write_in_flight_;
    } else {
      action = NextAction();
    }
  }
  if (hangs) return call_.Abandon(AnswersUnread());
  if (full) return call_.Cancel(AnswersUnread());  // Done will finish it
  Perform(action);
}

void TokenStreamReactor::Done(const absl::Status& status) {
  call_.Release();
  Action action = Action::kNone;
  {
    const MutexLock lock(mutex_);
    done_ = true;
    if (status_.ok()) status_ = status;
    // After a failure only the status matters; text that was not written yet is not waited for.
    if (!status.ok()) DropPending();
    action = NextAction();
  }
  Perform(action);
}

void TokenStreamReactor::OnWriteDone(bool ok) {
  call_.writes().End();
  Action action = Action::kNone;
  {
    const MutexLock lock(mutex_);
    write_in_flight_ = false;
    call_.Drop(writing_.bytes);
    if (!ok) {
      broken_ = true;
      DropPending();
    } else if (writing_.tokens > 0) {
      core_.engine.Acknowledge(writing_.sequence, writing_.tokens);
    }
    action = NextAction();
  }
  Perform(action);
}

void TokenStreamReactor::OnCancel() {
  {
    const MutexLock lock(mutex_);
    broken_ = true;
    DropPending();
  }
  call_.OnCancel();
}

TokenStreamReactor::Action TokenStreamReactor::NextAction() {
  if (write_in_flight_) return Action::kNone;
  while (!pending_.empty()) {
    Event event = std::move(pending_.front());
    pending_.erase(pending_.begin());
    bytes_.Clear();
    if (!Encode(std::move(event.message), &bytes_)) continue;
    writing_ = event.load;
    writing_.bytes = static_cast<int64_t>(bytes_.Length());
    call_.Drop(event.load.bytes - writing_.bytes);
    write_in_flight_ = true;
    return Action::kWrite;
  }
  return done_ ? Action::kFinish : Action::kNone;
}

void TokenStreamReactor::Perform(Action action) {
  if (action == Action::kNone) return;
  call_.writes().Begin();
  if (action == Action::kWrite) StartWrite(&bytes_);
  if (action == Action::kFinish) Finish(call_.End(status_));
}

void TokenStreamReactor::DropPending() {
  for (const Event& event : pending_) call_.Drop(event.load.bytes);
  pending_.clear();
}

}  // namespace fox
