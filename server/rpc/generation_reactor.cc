// GenerationReactor: see generation_reactor.h.
#include "server/rpc/generation_reactor.h"

#include <algorithm>
#include <utility>

namespace fox {
namespace {

// What a delivered event takes in memory.
int64_t HeldBytes(const v1::GenerateDelta& event) {
  return 4 * static_cast<int64_t>(event.ByteSizeLong());  // log-probabilities: 40 bytes for 10
}

// Whether an event can join one of the same sequence that waits: a slow reader gets fewer, larger
// deltas, and the newest windows.
bool Joins(const v1::GenerateDelta& next, const v1::GenerateDelta& last) {
  return (next.has_delta() && last.has_delta()) || (next.has_windows() && last.has_windows());
}

void Append(const v1::TokenDelta& next, v1::TokenDelta* last) {
  last->mutable_text()->append(next.text());
  last->mutable_token_ids()->MergeFrom(next.token_ids());
  last->mutable_logprobs()->MergeFrom(next.logprobs());
}

}  // namespace

CallReactor* GenerationReactor::Start(ServerCore& core, Method method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) {
  CallInfo info = DescribeCall(method.name, *context, core);
  const absl::Status admitted = core.Admit(&info, static_cast<int64_t>(request->Length()));
  const auto convert = [&core, convert = method.convert, bytes = TakeBytes(request)]() mutable {
    return convert(&bytes, core.context);
  };
  auto* reactor = new GenerationReactor(core, std::move(method), context, std::move(info));
  if (admitted.ok()) {
    // It may end before this returns, but OnCancel comes after the handler.
    const auto generation = Generation::Start(core, reactor->info_, convert, reactor);
    const MutexLock lock(reactor->mutex_);
    reactor->generation_ = generation;
  } else {
    reactor->Done(admitted);
  }
  return reactor;
}

absl::Status GenerationReactor::Deliver(v1::GenerateDelta event, RequestId sequence,
                                        int64_t tokens) {
  const int64_t bytes = HeldBytes(event);
  Action action;
  bool full = false, hangs = false;
  {
    const MutexLock lock(mutex_);
    if (broken_) return absl::OkStatus();  // the generation has been told
    full = !info_.share.Hold(bytes);
    if (full) {
      broken_ = true;
      DropPending();
      hangs = write_in_flight_;
    } else {
      const auto same = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Event& last) {
        return last.sequence == sequence && Joins(event, last.message);
      });
      if (same == pending_.rend()) {
        pending_.push_back({std::move(event), sequence, tokens, bytes});
      } else if (event.has_windows()) {
        info_.share.Hold(-std::exchange(same->bytes, bytes));
        same->message.mutable_windows()->Swap(event.mutable_windows());
      } else {
        Append(event.delta(), same->message.mutable_delta());
        same->tokens += tokens;
        same->bytes += bytes;
      }
      action = Next();
    }
  }
  if (hangs) Abandon(AnswersUnread());
  if (full) return AnswersUnread();
  Perform(action);
  return absl::OkStatus();
}

void GenerationReactor::Done(const absl::Status& status) {
  Action action;
  {
    const MutexLock lock(mutex_);
    done_ = true;
    status_ = method_.end ? method_.end(status) : status;
    // After a failure only the status matters; text that was not written yet is not waited for.
    if (!status.ok()) DropPending();
    action = Next();
  }
  Perform(action);
}

void GenerationReactor::OnWriteDone(bool ok) {
  writes_->End();
  Action action;
  {
    const MutexLock lock(mutex_);
    write_in_flight_ = false;
    info_.share.Hold(-writing_.bytes);
    if (!ok) {
      broken_ = true;
      DropPending();
    } else if (writing_.tokens > 0) {
      core_.engine.Acknowledge(writing_.sequence, writing_.tokens);
    }
    action = Next();
  }
  Perform(action);
}

void GenerationReactor::OnCancel() {
  std::shared_ptr<Generation> generation;
  {
    const MutexLock lock(mutex_);
    broken_ = true;
    DropPending();
    generation = generation_.lock();
  }
  if (generation != nullptr) generation->Cancel(WhyCancelled());
}

GenerationReactor::Action GenerationReactor::Next() {
  if (write_in_flight_ || (method_.kind == Kind::kUnary && !done_)) return nullptr;
  do {
    if (pending_.empty()) {
      return done_ ? [this] { End(status_, nullptr); } : Action();
    }
  } while (!Encode());
  write_in_flight_ = true;
  if (done_ && pending_.empty()) return [this] { End(status_, &bytes_); };
  return [this] {
    writes_->Begin();
    StartWrite(&bytes_);
  };
}

bool GenerationReactor::Encode() {
  const auto end = method_.kind == Kind::kStream ? pending_.begin() + 1 : pending_.end();
  writing_ = {{}, pending_.front().sequence, pending_.front().tokens, 0};
  Events events;
  for (auto event = pending_.begin(); event != end; ++event) {
    writing_.bytes += event->bytes;
    events.push_back(std::move(event->message));
  }
  pending_.erase(pending_.begin(), end);
  bytes_.Clear();
  if (!method_.encode(std::move(events), &bytes_)) {
    if (writing_.tokens > 0) core_.engine.Acknowledge(writing_.sequence, writing_.tokens);
    return false;
  }
  const auto length = static_cast<int64_t>(bytes_.Length());
  if (info_.share.Hold(length - writing_.bytes)) writing_.bytes = length;
  return true;
}

void GenerationReactor::DropPending() {
  for (const Event& event : pending_) info_.share.Hold(-event.bytes);
  pending_.clear();
}

}  // namespace fox
