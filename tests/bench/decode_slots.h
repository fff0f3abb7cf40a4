// What both decode benchmarks are made of: sequences that decode in lockstep, and the table of
// their steps. bench_decode.cc has a CPU, bench_gpu_decode.cc a GPU with two steps in flight.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/bench_session.h"

namespace fox {

struct DecodeRun {
  Summary seconds;            // of one step
  double visited_blocks = 0;  // a step
  double live_pages = 0;      // a step
  double mean_position = 0;   // before the steps
  OpSeconds ops;              // of one step or all, as `total` is
  double total = 0;           // seconds
};

// The first slots of a cache; decoding moves positions on.
class DecodeSlots {
 public:
  DecodeSlots(const BenchSession& session, BenchModel& model, size_t slots)
      : session_(session), model_(model), position_(slots, 0), stats_(slots) {}

  // Prefills those of the first `count` slots that are shorter.
  absl::Status ExtendTo(int64_t context, size_t count);
  // The next prefill of a slot begins it anew.
  void Forget();

  // One token, which the caller adds, of each of the first `batch` slots.
  StepPlan NextStep(size_t batch);
  // Of the first `batch` slots.
  double MeanPosition(size_t batch) const;

  // Takes over the counters of a step; with `count` adds up what it read.
  void Collect(const StepResult& result, size_t batch, bool count);
  // What was added up over `steps` steps, by step; begins again.
  void TakeCounts(int64_t steps, DecodeRun& run);

 private:
  const BenchSession& session_;
  BenchModel& model_;
  std::vector<int64_t> position_;
  std::vector<AcpStats> stats_;
  int64_t visited_ = 0, live_ = 0;
};

// The bytes that a step cannot do without: weights, and pages visited.
double StepBytes(const BenchModel& model, const DecodeRun& run);

// One line and one JSON row for each measured (bound, context, batch size).
class DecodeTable {
 public:
  // What only one of the benchmarks has to tell.
  struct Extras {
    double arithmetic = 0;        // seconds that a step takes at least, whatever memory does
    std::string cells;            // before the line's last column
    std::string below;            // lines
    nlohmann::ordered_json more;  // members of the row
  };

  explicit DecodeTable(BenchSession& session) : session_(session) {}

  void Add(const BenchModel& model, AcpMode mode, int64_t context, int64_t batch,
           const DecodeRun& run, const Extras& extras);

 private:
  BenchSession& session_;
  std::map<std::pair<int64_t, int64_t>, double> off_;  // seconds without a bound
};

}  // namespace fox
