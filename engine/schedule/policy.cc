// What may start, and what gives way. Read policy.h first.
#include "engine/schedule/policy.h"

#include <algorithm>
#include <map>

namespace fox {

bool MayStart(const Sequence& next, int64_t running, int64_t slow, int64_t max_running,
              bool best_effort_step) {
  if (!next.is_schedulable()) return false;
  // One that was preempted with a plan in flight comes back when that has been collected.
  if (next.slot < 0 && next.in_flight > 0) return false;
  if (!IsBestEffort(next)) return true;
  return best_effort_step && (slow == running || slow < MostSlow(max_running));
}

bool MissesDeadline(const Sequence& next, const ServiceTimes& times, Seconds now) {
  if (next.started || next.request.deadline == kNever || !times.known()) return false;
  const Seconds first = times.Prefill(next.prompt_tokens);
  const Seconds whole = times.Service(next.prompt_tokens, next.max_tokens);
  const bool could_finish = next.stats.arrival + whole <= next.request.deadline;
  return now + (could_finish ? std::max(first, 0.7 * whole) : first) > next.request.deadline;
}

Sequence* PagesVictim(const std::vector<Sequence*>& holders) {
  const auto before = [](const Sequence* a, const Sequence* b) {
    if (a->state != b->state) return a->state == SequenceState::kPaused;
    return a->length() != b->length() ? a->length() < b->length() : a->place > b->place;
  };
  const auto least = std::min_element(holders.begin(), holders.end(), before);
  return least == holders.end() ? nullptr : *least;
}

Sequence* SlotVictim(const std::set<Sequence*, RunsEarlier>& running, const Sequence& next,
                     Seconds now) {
  std::map<uint64_t, int64_t> slots;  // of each client, so far
  int64_t most = 2;
  Sequence* last = nullptr;
  for (Sequence* sequence : running) {
    const int64_t count = ++slots[sequence->request.client];
    if (count < most || sequence->rescued || sequence->priority < next.priority) continue;
    if (now < sequence->queue().running_since + kSlotTurn) continue;
    most = count;
    last = sequence;
  }
  return last;
}

}  // namespace fox
