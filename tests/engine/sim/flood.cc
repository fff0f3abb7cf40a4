// What newcomers are like, and how long others may wait for a token beside them. Read flood.h
// first.
#include "tests/engine/sim/flood.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "kernels/paged_kv.h"

namespace fox::sim {
namespace {

constexpr Seconds kPause = 0.05;  // beside each step

// Urgent ones of the day's kind; on half of the days unlike them in some ways.
struct Newcomers {
  explicit Newcomers(Random& random) {
    if (!random.Chance(0.5)) return;
    as_urgent_as_others = random.Chance(0.3);
    small = random.Chance(0.3);
    large = random.Chance(0.3);
    strangers = random.Chance(0.3);
    slow = random.Chance(0.5);
    grouped = random.Chance(0.3);
    scored = random.Chance(0.3);
    if (random.Chance(0.5)) at_once = 4;
  }

  std::vector<Request> Make(Random& random, Day* day) const {
    const Swarm& swarm = day->swarm();
    Request request = MakeRequest(swarm, day->now(), random);
    request.id = day->NewId();
    if (!slow) request.flow_window = 0;
    if (!as_urgent_as_others) request.priority = 0;
    if (strangers) request.client = request.id;  // a client of its own
    if (small) request.prompt.resize(std::min<size_t>(request.prompt.size(), 4));
    if (large) request.prompt.resize(static_cast<size_t>(swarm.long_prompt), 3);
    if (scored) request.sampling.prompt_logprobs = 0;
    request.stop.max_tokens += 10;
    std::vector<Request> requests = {std::move(request)};
    if (grouped) {
      requests.push_back(requests.front());
      requests.back().id = day->NewId();
    }
    return requests;
  }

  bool as_urgent_as_others = false, small = false, large = false, strangers = false;
  bool slow = false, grouped = false, scored = false;
  int at_once = 1;
};

// In steps, by the rules of scheduler.h and waiting_queue.h.
class Bounds {
 public:
  Bounds(const Day& day, const Newcomers& newcomers) {
    const Swarm& swarm = day.swarm();
    const ExecutorLimits& limits = swarm.executor.limits;
    const int64_t least = limits.least_prefill();
    const int64_t slots =
        std::min({int64_t{limits.max_num_seqs}, limits.max_num_batched_tokens - least + 1,
                  limits.max_logit_rows - least + 1});
    // What decodes leave; of rows the first keeps half.
    int64_t budget = limits.max_num_batched_tokens - slots + 1;
    if (limits.max_mixed_tokens > 0) budget = std::min(budget, limits.max_mixed_tokens);
    const int64_t rows = std::max<int64_t>(1, (limits.max_logit_rows - slots + 1) / 2);
    const bool scored = swarm.scored > 0 || newcomers.scored;
    // Where chunks matter the first has one, whatever there is.
    const int64_t page = kPageTokens;
    chunk_ = least > 1 ? page : std::min({page, budget, scored ? rows : page});
    const Seconds shortest = kPause + swarm.step_seconds;
    const Seconds longest =
        shortest + swarm.token_seconds * static_cast<double>(limits.max_num_batched_tokens);
    if (swarm.windows > 0) best_effort_turn_ = 1 + static_cast<int64_t>(11 * longest / shortest);
    if (limits.chunk_multiple > 1) replays_ = best_effort_turn_ * (swarm.max_tokens + 10);
    drain_ = slots * Chunks(limits.max_model_len) + best_effort_turn_ * (swarm.max_tokens + 10);
    if (swarm.windows > 0) drain_ += Turn(limits.max_model_len, true);
    yields_ = swarm.clients > 1 || newcomers.strangers || swarm.windows > 0;
    waits_ = static_cast<int64_t>((WaitingQueue::kAging + Scheduler::kBackfilling) / shortest);
    all_ = (kMaxPreemptions + 1) * (drain_ + replays_);
    for (const auto& client : day.clients()) {
      const Request& request = client->request();
      all_ += Aged(Length(request), request.stop.max_tokens, request.flow_window > 0);
    }
    if (yields_) {
      all_ += swarm.engine.max_num_queued_reqs *
              Aged(limits.max_model_len, swarm.max_tokens + 10, swarm.windows > 0);
    }
  }

  // Whether sequences may have to give running slots up: of several clients, or of slow readers.
  bool yields() const { return yields_; }

  // From a start to a token, behind those that are replayed. Of the prompts that are computed the
  // earliest is first in one of kEarliestTurn steps, among slow readers in those that have them;
  // pages may be missing until all that come before it have ended. REQUIRES: !yields().
  int64_t Start(const Request& request) const {
    return Turn(Length(request), request.flow_window > 0) + replays_ + drain_;
  }
  // From a token to the next or, where sequences give running slots up, from a plan with it to the
  // next: then what waits in the queue by then is older, too. What waits and is older has its turn,
  // in any slot and step, when others have started with kAgedShare times what it asks for (each
  // step serves a token of them at least), not before kAging; then it may find no room for
  // kBackfilling, and until all that run have ended. A preempted sequence, kMaxPreemptions times
  // before it comes first, comes back to any slot when all that run have ended.
  int64_t all() const { return all_; }

 private:
  static int64_t Length(const Request& request) {
    return static_cast<int64_t>(request.prompt.size()) + request.stop.max_tokens;
  }
  // Of one that is older.
  int64_t Aged(int64_t tokens, int64_t max_tokens, bool slow) const {
    const int64_t asked = tokens + WaitingQueue::kDecodeCost * max_tokens;
    return WaitingQueue::kAgedShare * asked + waits_ + drain_ + Turn(tokens, slow);
  }
  int64_t Chunks(int64_t tokens) const {
    return PagesFor(tokens) * ((kPageTokens + chunk_ - 1) / chunk_) + 1;
  }
  int64_t Turn(int64_t tokens, bool slow) const {
    return (slow ? best_effort_turn_ : 1) * (Scheduler::kEarliestTurn * Chunks(tokens) + 2);
  }

  int64_t chunk_ = 1;             // of the one prompt that is first
  int64_t best_effort_turn_ = 1;  // slow readers run in one of so many steps
  int64_t replays_ = 0;           // of all that a sequence has generated
  int64_t drain_ = 0;             // until all that run have ended, if no other starts
  int64_t waits_ = 0, all_ = 0;
  bool yields_ = false;
};

}  // namespace

double Flood(Random& kinds, Random& random, Day* day) {
  day->Count(Mark::kFloods);
  const Newcomers newcomers(kinds);
  const Bounds bounds(*day, newcomers);
  const RequestId last = day->NewId();
  double longest = 0;
  const auto check = [&](const Client& client, int64_t waited, int64_t bound, const char* what) {
    longest = std::max(longest, static_cast<double>(waited) / static_cast<double>(bound));
    if (waited > bound) day->Fail(what + std::to_string(client.request().id));
  };
  for (int64_t i = 0; day->ok() && !day->fatal(); ++i) {
    bool done = true;
    for (const auto& client : day->clients()) {
      if (client->request().id >= last) continue;
      done = false;
      const int64_t last_at = bounds.yields() ? client->planned_at : client->heard_of_at;
      check(*client, std::min(i, day->steps() - last_at), bounds.all(), "starved by newcomers: ");
      if (bounds.yields() || client->started_at < 0) continue;
      check(*client, std::min(i, day->steps() - client->started_at),
            bounds.Start(client->request()), "starved by newcomers though it had started: ");
    }
    if (done) break;
    for (int k = 0; k < newcomers.at_once; ++k) day->Submit(newcomers.Make(random, day));
    day->AcknowledgeAll();
    day->Wait(kPause);
    day->Step();
  }
  return longest;
}

}  // namespace fox::sim
