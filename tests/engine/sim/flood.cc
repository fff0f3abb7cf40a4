// Flood: random newcomers, and the derived bound on the wait for a token beside them. Read flood.h
// first.
#include "tests/engine/sim/flood.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/policy.h"
#include "kernels/paging/paged_kv.h"

namespace fox::sim {
namespace {

constexpr Seconds kPause = 0.05;  // beside each step

// Urgent requests of the day's kind; on half of the days they differ in some ways.
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

// Bounds in steps, by the rules of policy.h. A sequence is rescued after kStarvation, and after the
// sequences that have waited longer, one at a time. A rescued sequence waits until slots and pages
// are free, at most until all running ones have ended, and is then first in each step.
class Bounds {
 public:
  Bounds(const Day& day, const Newcomers& newcomers) {
    const Swarm& swarm = day.swarm();
    const ExecutorLimits& limits = swarm.executor.limits;
    const int64_t least = limits.chunks.min_room();
    const int64_t slots =
        std::min({int64_t{limits.max_num_seqs}, limits.max_num_batched_tokens - least + 1,
                  limits.max_logit_rows - least + 1});
    // Tokens that decodes leave. Half of the rows are kept for the first prompt.
    int64_t budget = limits.max_num_batched_tokens - slots + 1;
    const int64_t mixed = limits.prefill_tokens_per_decode * kLeastDecodes;
    if (mixed > 0) budget = std::min(budget, mixed);
    const int64_t rows = std::max<int64_t>(1, (limits.max_logit_rows - slots + 1) / 2);
    const bool scored = swarm.scored > 0 || newcomers.scored;
    const int64_t page = kPageTokens;
    // Where chunks matter, the first prompt always has room for one.
    const int64_t chunk = least > 1 ? page : std::min({page, budget, scored ? rows : page});
    const int64_t chunks = PagesFor(limits.max_model_len) * ((kPageTokens + chunk - 1) / chunk) + 1;
    // Where chunks matter generated tokens are decoded again.
    const int64_t tokens = swarm.max_tokens + 10;
    const int64_t again = chunks + (limits.chunks.fixed ? tokens : 0);
    const int64_t drain = slots * again + (swarm.windows > 0 ? kSlowShare : 1) * tokens;
    const Seconds shortest = kPause + swarm.step_seconds;
    starvation_ = static_cast<int64_t>(kStarvation / shortest) + 1;
    rescue_ = std::max(starvation_, drain + again + limits.depth);
  }

  // Steps from a token to the next, behind `others` sequences that may have waited longer.
  int64_t Wait(int64_t others) const { return starvation_ + (others + 1) * rescue_; }

 private:
  int64_t starvation_ = 0, rescue_ = 0;
};

}  // namespace

double Flood(Random& kinds, Random& random, Day* day) {
  day->Count(Mark::kFloods);
  const Newcomers newcomers(kinds);
  const Bounds bounds(*day, newcomers);
  const RequestId last = day->NewId();
  double longest = 0;
  int64_t most = 0;  // clients at once
  for (int64_t i = 0; day->ok() && !day->fatal(); ++i) {
    bool done = true;
    most = std::max(most, static_cast<int64_t>(day->clients().size()));
    for (const auto& client : day->clients()) {
      if (client->request().id >= last) continue;
      done = false;
      const int64_t waited = std::min(i, day->steps() - client->heard_of_at);
      const int64_t bound = bounds.Wait(most);
      longest = std::max(longest, static_cast<double>(waited) / static_cast<double>(bound));
      if (waited > bound) {
        day->Fail("starved by newcomers: " + std::to_string(client->request().id));
      }
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
