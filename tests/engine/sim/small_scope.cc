// Every order of few events, each from the start. Read small_scope.h first.
#include "tests/engine/sim/small_scope.h"

#include <utility>
#include <vector>

#include "tests/engine/sim/day.h"

namespace fox::sim {
namespace {

enum class Event : uint8_t {
  kStep,
  kSubmit,  // the next request
  kCancelOldest,
  kCancelNewest,
  kAcknowledge,  // all that the first slow reader has not
  kWait,         // past deadlines and stalls
  kCount
};

constexpr const char* kEventNames[] = {"step",          "submit",      "cancel oldest",
                                       "cancel newest", "acknowledge", "wait"};

Swarm SmallSwarm(int depth) {
  Swarm swarm;
  ExecutorLimits& limits = swarm.executor.limits;
  limits.num_pages = 4;
  limits.lists_per_slot = 1;
  limits.max_num_seqs = 2;
  limits.num_slots = 3;
  limits.max_model_len = 256;
  limits.max_num_batched_tokens = 128;
  limits.max_logit_rows = 8;
  limits.vocab_size = 8;
  limits.depth = depth;
  limits.samples_on_device = depth > 1;
  swarm.executor.min_window = swarm.executor.max_window = 1;
  swarm.engine.max_num_queued_reqs = 2;
  swarm.engine.max_paused_reqs = 1;
  swarm.engine.stall_timeout = 50;
  swarm.step_seconds = 0.01;
  return swarm;
}

// A reader that crosses a page end, a prompt of three pages, and one that nearly fills the pool.
Request SmallRequest(RequestId id, Seconds now) {
  constexpr size_t kPrompts[] = {62, 130, 190};
  constexpr int32_t kTokens[] = {5, 3, 4};
  const size_t i = static_cast<size_t>(id - 1);
  Request request;
  request.id = id;
  for (size_t k = 0; k < kPrompts[i]; ++k) {
    request.prompt.push_back(static_cast<int32_t>((k * 5 + i) % 8));
  }
  request.stop.max_tokens = kTokens[i];
  request.sampling.seed = id;
  request.client = i == 2 ? 1 : 0;
  if (i < 2) request.flow_window = i == 0 ? 2 : 1;
  if (i == 1) request.deadline = now + 50;
  if (i == 2) request.log_tolerance = kNoMass;
  return request;
}

class Explorer {
 public:
  Explorer(const Swarm& swarm, Bug bug, ScopeReport* report)
      : swarm_(swarm), bug_(bug), report_(report) {}

  // All continuations of `path_` by `depth` events.
  void Explore(int depth) {
    if (!report_->violation.empty()) return;
    if (depth == 0) return RunPath();
    for (int i = 0; i < static_cast<int>(Event::kCount); ++i) {
      path_.push_back(static_cast<Event>(i));
      if (IsPossible()) Explore(depth - 1);
      path_.pop_back();
    }
  }

 private:
  // Whether the last event of the path changes anything, as far as is known without running it.
  bool IsPossible() const {
    int submitted = 0, steps = 0;
    for (const Event event : path_) {
      if (event == Event::kSubmit) ++submitted;
      if (event == Event::kStep) ++steps;
    }
    switch (path_.back()) {
      case Event::kStep:
        return submitted > 0;
      case Event::kSubmit:
        return submitted <= 3;
      case Event::kCancelOldest:
        return submitted > 0;
      case Event::kCancelNewest:
        return submitted > 1;
      case Event::kAcknowledge:
        return steps > 0;
      case Event::kWait:
        return submitted > 0 && path_[path_.size() - 2] != Event::kWait;
      default:
        return false;
    }
  }

  void RunPath() {
    Day day(swarm_, bug_);
    for (const Event event : path_) {
      if (!Happen(event, &day)) return;  // another path is the same without it
    }
    day.Close();
    ++report_->days;
    report_->marks.Add(day.CountMarks());
    if (day.ok()) return;
    report_->violation =
        day.violation() + ", depth " + std::to_string(swarm_.executor.limits.depth) + ", after";
    for (const Event event : path_) {
      report_->violation += std::string(" ") + kEventNames[static_cast<size_t>(event)] + ",";
    }
  }

  // False: nothing would change.
  static bool Happen(Event event, Day* day) {
    const auto& clients = day->clients();
    switch (event) {
      case Event::kStep:
        if (day->idle()) return false;
        day->Step();
        return true;
      case Event::kSubmit:
        day->Submit({SmallRequest(day->NewId(), day->now())});
        return true;
      case Event::kCancelOldest:
      case Event::kCancelNewest: {
        const bool oldest = event == Event::kCancelOldest;
        if (clients.size() < (oldest ? 1 : 2)) return false;
        size_t chosen = 0;
        for (size_t i = 1; i < clients.size(); ++i) {
          const bool older = clients[i]->request().id < clients[chosen]->request().id;
          if (older == oldest) chosen = i;
        }
        if (clients[chosen]->cancelled) return false;
        day->Cancel(chosen, absl::CancelledError("left"));
        return true;
      }
      case Event::kAcknowledge:
        for (size_t i = 0; i < clients.size(); ++i) {
          if (clients[i]->request().flow_window == 0 || clients[i]->open() == 0) continue;
          day->Acknowledge(i, clients[i]->open());
          return true;
        }
        return false;
      case Event::kWait:
        day->Wait(60);
        return true;
      default:
        return false;
    }
  }

  const Swarm swarm_;
  const Bug bug_;
  std::vector<Event> path_;
  ScopeReport* const report_;
};

}  // namespace

ScopeReport ExploreSmallScope(int depth, Bug bug) {
  ScopeReport report;
  for (const int in_flight : {1, 2}) {
    Explorer(SmallSwarm(in_flight), bug, &report).Explore(depth);
  }
  return report;
}

}  // namespace fox::sim
