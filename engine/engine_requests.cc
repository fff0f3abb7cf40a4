// Engine: how requests enter and leave it. Room in the queue, expected waits, deadlines, stalled
// readers, counters. Read engine.h first.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/engine.h"
#include "engine/request/request_validation.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

absl::Status QueueFull(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", what));
}

}  // namespace

absl::Status Engine::Queue(std::vector<Request> requests, Seconds now) {
  FOX_CHECK(!requests.empty());
  if (!fatal_.ok()) return Stopped();
  std::set<RequestId> ids;
  int64_t tokens = 0;
  for (const Request& request : requests) {
    absl::Status status = ValidateRequest(request, options_, limits_);
    if (!status.ok()) return status;
    if (sequences_.count(request.id) > 0 || !ids.insert(request.id).second) {
      return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is running"));
    }
    tokens += static_cast<int64_t>(request.prompt.size());
  }
  std::vector<Sequence*> victims;
  if (absl::Status status = CheckRoom(requests, tokens, &victims); !status.ok()) return status;
  if (absl::Status status = CheckWait(requests, now); !status.ok()) return status;
  Displace(victims, now);
  auto group = std::make_shared<SequenceGroup>();
  for (Request& request : requests) {
    const RequestId id = request.id;
    auto sequence = std::make_unique<Sequence>(std::move(request), options_, limits_.max_model_len,
                                               arrivals_++, now);
    sequence->group = group;
    group->members.push_back(sequence.get());
    scheduler_.Add(sequence.get(), now);
    UpdateEvent(sequence.get());
    sequences_.emplace(id, std::move(sequence));
  }
  UpdateGauges();
  idle_ = false;
  return absl::OkStatus();
}

// Ok if the queue has room for the requests, with `tokens` tokens in all, once `victims` are
// displaced. Only a client that holds less than its share displaces others.
absl::Status Engine::CheckRoom(const std::vector<Request>& requests, int64_t tokens,
                               std::vector<Sequence*>* victims) {
  const auto count = static_cast<int64_t>(requests.size());
  if (count > options_.max_num_queued_reqs || tokens > options_.max_num_queued_tokens) {
    return absl::OutOfRangeError("the request is larger than the queue");
  }
  int64_t waiting = scheduler_.waiting().size(), queued_tokens = scheduler_.waiting().tokens();
  while (waiting + count > options_.max_num_queued_reqs ||
         queued_tokens + tokens > options_.max_num_queued_tokens) {
    const Sequence* victim = scheduler_.waiting().Displaced(
        requests.front().client, count, tokens, options_.max_num_queued_reqs,
        options_.max_num_queued_tokens, *victims);
    if (victim == nullptr) {
      return QueueFull(waiting + count > options_.max_num_queued_reqs ? "too many requests"
                                                                      : "too many prompt tokens");
    }
    for (Sequence* member : victim->group->members) {
      victims->push_back(member);
      --waiting;
      queued_tokens -= member->queue().tokens;
    }
  }
  return absl::OkStatus();
}

// Refuses a request at once if its expected wait is too long. A request that could not finish in
// time even if it started now has to reach its first token only.
absl::Status Engine::CheckWait(const std::vector<Request>& requests, Seconds now) const {
  if (!times_.known() || sequences_.empty()) return absl::OkStatus();
  const Request& request = requests.front();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens =
      std::min<int64_t>(request.stop.max_tokens, limits_.max_model_len - prompt_tokens);
  const Work ahead = scheduler_.waiting().Ahead(
      request.client, static_cast<int64_t>(requests.size()) * prompt_tokens,
      Cost(prompt_tokens, max_tokens), times_);
  Seconds wait = times_.Wait(scheduler_.RunningWork(), ahead, scheduler_.max_running());
  if (scheduler_.waiting().WillBeDue(request.client, scheduler_.max_running())) {
    wait = std::min(wait, 2 * kSlotTurn);
  }
  const Seconds left = request.deadline - now;
  const Seconds whole = times_.Service(prompt_tokens, max_tokens);
  Seconds service = times_.Prefill(prompt_tokens);
  if (scheduler_.running() + scheduler_.waiting().size() >= scheduler_.max_running()) {
    service =
        std::max(whole <= left ? whole : service, AssumedService(times_.mean_service(), left));
  }
  const bool too_late = wait > 0 && (wait + service > left || now + wait > request.queue_deadline);
  if (too_late || (options_.max_queue_seconds > 0 && wait > options_.max_queue_seconds)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the queue is %.1f s long: %s", wait, too_late ? "the deadline would pass" : "too long"));
  }
  return absl::OkStatus();
}

void Engine::Displace(const std::vector<Sequence*>& victims, Seconds now) {
  std::set<const SequenceGroup*> groups;
  for (Sequence* sequence : victims) {
    if (groups.insert(sequence->group.get()).second) ++stats_.rejected;
    Close(sequence, Finish::With(QueueFull("displaced by a client that holds less of it")), now,
          &displaced_);
  }
}

void Engine::Close(Sequence* sequence, Finish finish, Seconds now,
                   std::vector<RequestOutput>* outputs) {
  RequestOutput& output = outputs->emplace_back();
  output.id = sequence->request.id;
  output.finish = std::move(finish);
  scheduler_.Remove(sequence, output.finish->status.ok());
  End(sequence, now, &*output.finish);
}

void Engine::DeliverCancellations(Seconds now, std::vector<RequestOutput>* outputs) {
  for (auto& [id, status, reason] : calls_.cancellations) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;  // cancelled twice
    Close(found->second.get(), status.ok() ? Finish::For(reason) : Finish::With(std::move(status)),
          now, outputs);
  }
  calls_.cancellations.clear();
}

void Engine::TakeAcknowledgements(Seconds now) {
  for (const auto& [id, arrival] : calls_.acknowledgements) {
    Sequence* sequence = Find(id, arrival);
    if (sequence == nullptr) continue;
    const bool rested = sequence->paused();
    sequence->UpdatePause(now);
    if (sequence->paused()) sequence->reader.Touch(now);
    if (rested && !sequence->paused()) scheduler_.Resume(sequence, now);
    if (rested) UpdateEvent(sequence);
  }
  calls_.acknowledgements.clear();
}

// The next time at which Step must look at the sequence although no plan brings news of it.
Seconds Engine::NextEvent(const Sequence& sequence) const {
  Seconds next = sequence.request.deadline;
  if (!sequence.group->started) next = std::min(next, sequence.request.queue_deadline);
  // A reader does not stall on tokens that are still pending.
  if (options_.stall_timeout > 0 && sequence.paused() && sequence.pending == 0) {
    next = std::min(next, sequence.reader.paused_since() + options_.stall_timeout);
  }
  return next;
}

void Engine::UpdateEvent(Sequence* sequence) {
  const Seconds next = NextEvent(*sequence);
  if (next == sequence->next_event) return;
  if (sequence->next_event != kNever) events_.erase(sequence);
  sequence->next_event = next;
  if (next != kNever) events_.insert(sequence);
}

void Engine::Expire(Seconds now, std::vector<RequestOutput>* outputs) {
  while (!events_.empty() && now >= (*events_.begin())->next_event) {
    Sequence* sequence = *events_.begin();
    if (now >= sequence->request.deadline) {
      Close(sequence, Finish::With(absl::DeadlineExceededError("the deadline has passed")), now,
            outputs);
    } else if (!sequence->group->started && now >= sequence->request.queue_deadline) {
      Close(sequence, Finish::With(absl::DeadlineExceededError("waited too long in the queue")),
            now, outputs);
    } else {
      Close(sequence, Finish::With(absl::AbortedError("the reader has stalled")), now, outputs);
    }
  }
}

// Beyond max_paused_reqs, the sequence that has waited longest for its reader ends.
void Engine::LimitPaused(Seconds now, std::vector<RequestOutput>* outputs) {
  while (scheduler_.paused() > options_.max_paused_reqs) {
    Sequence* longest = nullptr;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->state != SequenceState::kPaused) continue;
      if (longest == nullptr || sequence->reader.paused_since() < longest->reader.paused_since()) {
        longest = sequence.get();
      }
    }
    Close(longest, Finish::With(absl::AbortedError("too many readers have stalled")), now, outputs);
  }
}

void Engine::End(Sequence* sequence, Seconds now, Finish* finish) {
  finish->stats = sequence->FinalStats(now);
  Count(*finish);
  if (finish->status.ok()) {
    times_.RecordEnd(sequence->generated(), sequence->max_tokens,
                     now - sequence->stats.first_scheduled);
  }
  if (sequence->next_event != kNever) events_.erase(sequence);
  std::vector<Sequence*>& members = sequence->group->members;
  members.erase(std::find(members.begin(), members.end(), sequence));
  for (StepObserver* observer : observers_) observer->OnFinish(sequence->request, *finish);
  sequences_.erase(sequence->request.id);
}

void Engine::Count(const Finish& finish) {
  switch (finish.status.code()) {
    case absl::StatusCode::kOk:
      ++(finish.reason == FinishReason::kAbort ? stats_.aborted : stats_.finished);
      break;
    case absl::StatusCode::kCancelled:
      ++stats_.cancelled;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      ++stats_.expired;
      break;
    case absl::StatusCode::kAborted:
      ++stats_.aborted;
      break;
    case absl::StatusCode::kInvalidArgument:  // the grammar cannot be followed
      ++stats_.rejected;
      break;
    case absl::StatusCode::kResourceExhausted:
      break;  // counted as rejected
    default:
      ++stats_.failed;
  }
  stats_.max_log_evicted_mass =
      std::max(stats_.max_log_evicted_mass, finish.stats.acp.max_log_evicted_mass);
}

}  // namespace fox
