// Simulation: one seed is one day (day.h) of random clients over the real engine, scheduler and
// page pool. Deterministic: a seed that fails fails again. Phases: faults and impatient clients;
// then everything must end, on some days while newcomers keep coming; then the pool must be full.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tests/engine/sim/marks.h"

namespace fox::sim {

inline constexpr int64_t kDayOperations = 4000;

struct Report {
  std::string violation;  // empty: none
  int64_t operation = 0;  // that came last
  uint64_t trace = 0;     // hash of everything delivered
  Marks marks;
  double longest_wait = 0;  // for a token under a flood, as a part of its bound
};

struct DayOptions {
  uint64_t seed = 1;
  int64_t operations = kDayOperations;  // length of the first phase
  int64_t chunk_multiple = 0;           // of the executor; 0: chosen by the seed
  bool flood = false;                   // it ends with a flood, even if the seed says otherwise
  bool print = false;
  std::set<int64_t> without;  // operations left out; the others stay as they are
};

Report Simulate(const DayOptions& options);

inline bool HasViolation(const Report& report) { return !report.violation.empty(); }

// A failing day with as few operations as leaving some out can make it; `options` fails.
DayOptions Shrink(DayOptions options, bool (*fails)(const Report&) = HasViolation);

// A report for people: the seed, the operation, the violation, and the command that shows it.
std::string Describe(const DayOptions& options, const Report& report);

}  // namespace fox::sim
