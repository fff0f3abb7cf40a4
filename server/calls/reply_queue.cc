// ReplyQueue: see reply_queue.h.
#include "server/calls/reply_queue.h"

namespace fox {

void ReplyQueue::Expect(size_t generations, bool stream, CallBudget::Share* share) {
  const MutexLock lock(mutex_);
  stream_ = stream;
  share_ = share;
  running_ = generations;
}

void ReplyQueue::Attach(const std::shared_ptr<Generation>& started) {
  Step step;
  {
    const MutexLock lock(mutex_);
    generations_.push_back(started);
    step = Next();
  }
  Perform(step);
}

absl::Status ReplyQueue::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

absl::Status ReplyQueue::Deliver(size_t prompt, v1::GenerateDelta event, RequestId sequence,
                                 int64_t tokens) {
  Step step;
  bool hangs = false;
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    const int64_t more = Keep(prompt, std::move(event), sequence, tokens);
    if (share_->Hold(more)) {
      kept_ += more;
    } else {
      Fail(AnswersUnread());
      hangs = writing_;
    }
    step = Next();
  }
  if (hangs) Abandon(step.failure);
  Perform(step);
  return step.failure;
}

void ReplyQueue::Done(const absl::Status& status) {
  Step step;
  {
    const MutexLock lock(mutex_);
    --running_;
    if (!status.ok()) Fail(status);
    step = Next();
  }
  Perform(step);
}

void ReplyQueue::Written() {
  Taken written;
  Step step;
  {
    const MutexLock lock(mutex_);
    writing_ = false;
    written = std::exchange(in_flight_, {});
    share_->Hold(-written.bytes);
    step = Next();
  }
  for (const auto& [sequence, tokens] : written.tokens) engine_.Acknowledge(sequence, tokens);
  Perform(step);
}

void ReplyQueue::Wake() {
  Step step;
  {
    const MutexLock lock(mutex_);
    step = Next();
  }
  Perform(step);
}

void ReplyQueue::Close(const absl::Status& reason) {
  Step step;
  {
    const MutexLock lock(mutex_);
    Fail(reason);
    step = Next();
  }
  Perform(step);
}

void ReplyQueue::Fail(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  Drop();
  if (kept_ > 0) share_->Hold(-std::exchange(kept_, 0));
}

ReplyQueue::Step ReplyQueue::Next() {
  const bool last = running_ == 0;
  const bool due = last || (stream_ && failure_.ok() && !empty());
  Step step;
  if (due && !writing_ && !ended_) {
    if (failure_.ok()) {
      in_flight_ = Take();
      kept_ -= in_flight_.kept;
      if (!share_->Hold(in_flight_.bytes - in_flight_.kept)) {
        in_flight_.bytes = in_flight_.kept;
        if (last) Fail(AnswersUnread());
      }
    }
    writing_ = true;
    ended_ = last && empty();
    step.action = ended_ ? Step::kEnd : Step::kWrite;
  }
  step.failure = failure_;
  if (!failure_.ok()) step.cancelled = std::exchange(generations_, {});
  return step;
}

void ReplyQueue::Perform(const Step& step) {
  for (const auto& generation : step.cancelled) generation->Cancel(step.failure);
  if (step.action == Step::kWrite) Write();
  if (step.action == Step::kEnd) End(step.failure);
}

}  // namespace fox
