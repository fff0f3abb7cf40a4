// Simulation: random operations of a day, and shrinking. Read simulation.h first.
#include "tests/engine/sim/simulation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/engine/sim/day.h"
#include "tests/engine/sim/flood.h"

namespace fox::sim {
namespace {

// Operations draw from streams of their own: leaving one out changes no other.
constexpr uint64_t kSwarmStream = ~uint64_t{0}, kFloodStream = ~uint64_t{1};

Swarm SwarmOf(const DayOptions& options) {
  Random random(options.seed, kSwarmStream);
  Swarm swarm = MakeSwarm(random, options.chunk_multiple);
  if (options.flood) swarm.flood = 1;
  return swarm;
}

// Makes the request the next turn of a conversation, if there is one with room for more tokens.
void GoOn(Random& random, Day* day, Request* request) {
  const auto count = static_cast<int64_t>(day->conversations().size());
  if (!random.Chance(day->swarm().turns) || count == 0) return;
  const Request& before = day->conversations()[static_cast<size_t>(random.Int(0, count - 1))];
  const auto room = static_cast<size_t>(day->swarm().executor.limits.max_model_len) - 1;
  if (before.prompt.size() >= room) return;
  std::vector<int32_t> prompt = before.prompt;
  const size_t own = std::min(request->prompt.size(), room - prompt.size());
  prompt.insert(prompt.end(), request->prompt.begin(),
                request->prompt.begin() + static_cast<int64_t>(own));
  request->prompt = std::move(prompt);
  request->cache_salt = before.cache_salt;
  request->log_tolerance = before.log_tolerance;
  day->Count(Mark::kTurns);
}

void SubmitSome(Random& random, Day* day) {
  const Swarm& swarm = day->swarm();
  Request request = MakeRequest(swarm, day->now(), random);
  absl::StatusCode invalid = absl::StatusCode::kOk;
  if (swarm.turns > 0) GoOn(random, day, &request);
  // Now and then an id comes again, maybe while the executor still works for its first owner.
  const bool again = day->free_id() > 0 && random.Chance(0.1);
  request.id = again ? day->free_id() : day->NewId();
  if (random.Chance(swarm.invalid)) {
    invalid = SpoilRequest(swarm, random, &request);
  } else if (random.Chance(swarm.invalid / 5) && day->StartedId() > 0) {
    request.id = day->StartedId();
    invalid = absl::StatusCode::kAlreadyExists;
  }
  if (invalid == absl::StatusCode::kOk && random.Chance(swarm.nan)) day->MakeNan(request.id);
  std::vector<Request> requests = {std::move(request)};
  if (random.Chance(swarm.groups)) {
    const int64_t siblings = random.Int(1, 3);
    for (int64_t i = 0; i < siblings; ++i) {
      requests.push_back(requests.front());
      requests.back().id = day->NewId();
      requests.back().sampling.seed += static_cast<uint64_t>(i) + 1;
    }
  }
  day->Submit(requests, invalid);
}

// A client that has something to acknowledge, if three tries find one.
void AcknowledgeOne(Random& random, Day* day) {
  const auto last = static_cast<int64_t>(day->clients().size()) - 1;
  for (int i = 0; i < 3 && last >= 0; ++i) {
    const auto index = static_cast<size_t>(random.Int(0, last));
    const Client& client = *day->clients()[index];
    if (client.request().flow_window == 0 || client.open() == 0) continue;
    const int64_t taken = random.Chance(0.5) ? client.open() : random.Int(0, client.open());
    // Acknowledging more tokens than were delivered counts as all of them.
    const bool excess = taken == client.open() && random.Chance(0.1);
    return day->Acknowledge(index, taken, excess ? 1000 : 0);
  }
}

void CancelOne(Random& random, Day* day) {
  if (day->clients().empty()) return;
  const auto last = static_cast<int64_t>(day->clients().size()) - 1;
  const auto status = random.Chance(0.3) ? absl::OkStatus() : absl::CancelledError("left");
  day->Cancel(static_cast<size_t>(random.Int(0, last)), status);
}

void Operate(Random& random, Day* day) {
  const Swarm& swarm = day->swarm();
  const double total = swarm.submit + swarm.cancel + swarm.acknowledge + swarm.step;
  double choice = random.Unit() * total;
  day->Wait(random.Chance(swarm.stalls) ? 40 * random.Unit() : swarm.tick * random.Unit());
  if (swarm.flushes > 0 && random.Chance(swarm.flushes)) day->FlushPrefixCache();
  if ((choice -= swarm.submit) < 0) {
    const int64_t count = swarm.burst > 1 && random.Chance(0.1) ? random.Int(1, swarm.burst) : 1;
    for (int64_t i = 0; i < count; ++i) SubmitSome(random, day);
  } else if ((choice -= swarm.cancel) < 0) {
    CancelOne(random, day);
  } else if ((choice -= swarm.acknowledge) < 0) {
    AcknowledgeOne(random, day);
  } else {
    day->Step();
  }
}

}  // namespace

Report Simulate(const DayOptions& options) {
  Day day(SwarmOf(options), options.print);
  Report report;
  for (int64_t i = 0; i < options.operations && day.ok() && !day.fatal(); ++i) {
    report.operation = i;
    if (!options.without.empty() && options.without.count(i) > 0) continue;
    Random random(options.seed, static_cast<uint64_t>(i));
    Operate(random, &day);
  }
  Random random(options.seed, static_cast<uint64_t>(options.operations));
  if (day.ok() && day.fatal()) SubmitSome(random, &day);  // must be refused
  if (day.ok() && !day.fatal() && random.Chance(day.swarm().flood)) {
    Random kinds(options.seed, kFloodStream);
    report.longest_wait = Flood(kinds, random, &day);
  }
  if (day.ok() && day.swarm().store_seed > 0 && random.Chance(0.2)) day.SavePrefixCache();
  if (day.ok()) day.Close(random.Chance(day.swarm().cancel_all));
  report.violation = day.violation();
  report.trace = day.trace();
  report.marks = day.CountMarks();
  return report;
}

// Leaves out ever smaller blocks of operations (Zeller and Hildebrandt's delta debugging).
DayOptions Shrink(DayOptions options, bool (*fails)(const Report&)) {
  options.print = false;
  options.operations = std::min(options.operations, Simulate(options).operation + 1);
  for (int64_t block = std::max<int64_t>(1, options.operations / 2); block > 0; block /= 2) {
    for (int64_t begin = 0; begin < options.operations; begin += block) {
      DayOptions smaller = options;
      for (int64_t i = begin; i < std::min(begin + block, options.operations); ++i) {
        smaller.without.insert(i);
      }
      if (smaller.without.size() > options.without.size() && fails(Simulate(smaller))) {
        options = std::move(smaller);
      }
    }
  }
  return options;
}

std::string Describe(const DayOptions& options, const Report& report) {
  std::string text = "seed " + std::to_string(options.seed) + ", operation " +
                     std::to_string(report.operation) + ", " + report.violation +
                     "\nreplay: fox-simulate --seed " + std::to_string(options.seed) +
                     " --operations " + std::to_string(options.operations);
  if (options.chunk_multiple > 0) {
    text += " --chunk-multiple " + std::to_string(options.chunk_multiple);
  }
  if (options.flood) text += " --flood";
  return text + " --print (add --shrink for fewer operations)";
}

}  // namespace fox::sim
