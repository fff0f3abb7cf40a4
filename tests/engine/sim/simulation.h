// Simulation: one seed is one day of random clients over Engine and FakeExecutor, checked after
// every step against ReferenceModel and the pool's audit. Deterministic: a seed that fails fails
// again. The executor keeps one to three steps in flight and samples tokens itself or does not, by
// seed. Phases: faults and impatient clients; then everything must end; then the pool must be
// full.
#pragma once

#include <cstdint>
#include <string>

#include "tests/engine/sim/fake_executor.h"

namespace fox::sim {

// Planted bugs between the engine and its clients.
enum class StreamBug {
  kNone,
  kDropToken,       // a token is lost after a preemption
  kRepeatToken,     // a token is delivered again after a preemption
  kLoseFinish,      // an end is not delivered
  kIgnoreCancel,    // a cancellation is not heard
  kIgnoreDeadline,  // a deadline is not heard
  kLoseWakeup,      // an acknowledgement is not heard
  kIgnoreWindow,    // a window is not heard
  kOverBudget,      // the engine believes in a larger batch
  kForgetProgress,  // a prompt log-probability is delivered twice
  kWrongSeed,       // sampling uses another seed
};

struct Bugs {
  ExecutorBug executor = ExecutorBug::kNone;
  StreamBug stream = StreamBug::kNone;
};

// What happened; marks must all be hit over many seeds.
struct Marks {
  int64_t operations = 0;  // client calls and steps
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t submitted = 0;
  int64_t rejected = 0;
  int64_t preemptions = 0;
  int64_t evictions = 0;
  int64_t cancelled_waiting = 0;
  int64_t cancelled_running = 0;
  int64_t cancelled_preempted = 0;
  int64_t preempted_paused = 0;
  int64_t pauses = 0;
  int64_t deadlines = 0;
  int64_t exhausted = 0;
  int64_t numerical = 0;
  int64_t faults = 0;
  int64_t stopped = 0;
  int64_t lengths = 0;
  int64_t sampled = 0;            // by the executor
  int64_t fed_samples = 0;        // before they were collected
  int64_t processed_samples = 0;  // of those: with penalties, biases or masks
  int64_t restored_states = 0;  // penalties that went on after a preemption or the prompt's scores
  int64_t returns = 0;          // preempted with a plan in flight and back again
  int64_t late_faults = 0;
  int64_t displaced = 0;  // by another client
  int64_t stalled = 0;    // readers

  void Add(const Marks& other);
};

struct Report {
  std::string violation;  // empty: none
  uint64_t trace = 0;     // hash of everything delivered
  Marks marks;
};

// `operations`: length of the first phase.
Report Simulate(uint64_t seed, int64_t operations, Bugs bugs = {}, bool print = false);

}  // namespace fox::sim
