// PageLedger: how many pages are sure to be free when the next plan starts, though the last plans
// may still be in flight. Invariant: free() plus the sum of held() is at most what is free or in a
// slot after those plans: a page that they evict only moves from a slot to the free ones, so
// evictions in flight are counted as still held and change nothing. Hence releasing a slot gives
// exactly held() more, and a plan within free() never runs the pool dry. Read scheduler.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/step_executor.h"
#include "engine/step_plan.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {

class PageLedger {
 public:
  explicit PageLedger(const ExecutorLimits& limits)
      : lists_per_slot_(limits.lists_per_slot),
        collected_{limits.num_pages, std::vector<int64_t>(static_cast<size_t>(limits.slots()), 0)},
        expected_(collected_) {}

  // Pages free after the plans in flight, nothing evicted by them. Negative only while an executor
  // that understates its free pages is about to report.
  int64_t free() const { return expected_.free; }
  // Pages that releasing the slot in the next plan adds to that.
  int64_t held(int32_t slot) const { return expected_.held[static_cast<size_t>(slot)]; }
  bool in_flight() const { return !plans_.empty(); }
  // Pages that a sequence takes on its way from one length to another.
  int64_t Between(int64_t from, int64_t to) const {
    return lists_per_slot_ * (PagesFor(to) - PagesFor(from));
  }

  void Submit(const StepPlan& plan) {
    Change change{plan.release_slots, {}};
    for (const PlannedSequence& sequence : plan.sequences) {
      const int64_t end = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
      change.taken.emplace_back(sequence.slot, Between(sequence.position, end));
    }
    Apply(change, &expected_);
    plans_.push_back(std::move(change));
  }

  // The oldest plan in flight has run. What came back replaces what was expected, and the plans
  // behind it are counted anew: one of them may release a slot that has evicted since.
  void Collect(const StepResult& result) {
    FOX_CHECK(!plans_.empty());
    const Change change = std::move(plans_.front());
    plans_.pop_front();
    Apply(change, &collected_);
    collected_.free = result.free_pages;
    for (size_t i = 0; i < change.taken.size(); ++i) {
      collected_.held[static_cast<size_t>(change.taken[i].first)] = result.stats[i].live_pages();
    }
    expected_ = collected_;
    for (const Change& later : plans_) Apply(later, &expected_);
  }

 private:
  struct Pool {
    int64_t free;
    std::vector<int64_t> held;  // [slots]
  };
  // What a plan does to the pool.
  struct Change {
    std::vector<int32_t> released;                   // first
    std::vector<std::pair<int32_t, int64_t>> taken;  // slot, pages; as in plan.sequences
  };

  static void Apply(const Change& change, Pool* pool) {
    for (const int32_t slot : change.released) {
      pool->free += std::exchange(pool->held[static_cast<size_t>(slot)], 0);
    }
    for (const auto& [slot, pages] : change.taken) {
      pool->free -= pages;
      pool->held[static_cast<size_t>(slot)] += pages;
    }
  }

  const int64_t lists_per_slot_;
  Pool collected_;            // after the last plan collected
  Pool expected_;             // after the plans in flight
  std::deque<Change> plans_;  // in flight, the oldest first
};

}  // namespace fox
