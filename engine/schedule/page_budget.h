// Page budget: how many pages may be spent (PageLedger), and how many a sequence is expected to
// keep (PageForecast). Read scheduler.h next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/request/step_executor.h"
#include "engine/request/step_plan.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// How many pages are sure to be free when the next plan starts, though plans may be in flight.
//
// Invariant: once the plans in flight have run, free() plus the sum of held() is at most the number
// of pages that are free or in a single slot. Pages that plans in flight evict still count as held;
// shared pages count for no slot until the executor reports a sole owner. So releasing a slot frees
// held() pages or more, and a plan that takes free() pages never runs the pool dry.
class PageLedger {
 public:
  explicit PageLedger(const ExecutorLimits& limits);
  // Aborts if the invariant cannot hold.
  void Check() const;
  // Negative only while an executor that understates its free pages is about to report.
  int64_t free() const { return expected_.free; }
  int64_t held(int32_t slot) const { return expected_.held[static_cast<size_t>(slot)]; }
  bool in_flight() const { return !plans_.empty(); }
  // Pages that a slot takes to grow from one length to another.
  int64_t Between(int64_t from, int64_t to) const {
    return lists_per_slot_ * (PagesFor(to) - PagesFor(from));
  }
  // Pages that are neither free nor held by a single sequence.
  int64_t shared() const;
  // The plan that is being made shares the pages of slot `from`.
  void Share(int32_t from);
  void Submit(const StepPlan& plan);
  void Collect(const StepResult& result);

 private:
  struct Pool {
    int64_t free;
    std::vector<int64_t> held;  // [slots + snapshot_slots]
  };

  void Apply(const StepPlan& plan, Pool* pool) const;

  const int64_t lists_per_slot_, num_pages_;
  const int32_t sequence_slots_;
  Pool collected_;                     // after the last plan collected
  Pool expected_;                      // after the plans in flight
  std::deque<StepPlan> plans_;         // in flight, the oldest first
  std::vector<int32_t> shared_slots_;  // of the plan that is being made
};

// How many pages a sequence is likely to hold at a length: the share of their pages that other
// sequences kept after 1, 2, 4, ... page rows. Before anything is observed, a sequence keeps all
// its pages. A forecast does not allow anything: PageLedger says how many pages may be spent.
class PageForecast {
 public:
  explicit PageForecast(int64_t lists_per_slot) : lists_(static_cast<double>(lists_per_slot)) {}

  // A sequence grew from length `from` to length `to`, at which it holds `pages` pages.
  void Observe(int64_t from, int64_t to, int64_t pages);
  double At(int64_t tokens) const;

 private:
  struct Mean {  // pages kept of each page row
    double samples = 0, kept = 0;
  };

  const double lists_;
  std::array<Mean, 64> by_length_;  // by the bit width of the length in page rows
};

}  // namespace fox
