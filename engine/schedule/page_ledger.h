// PageLedger: how many pages are sure to be free when the next plan starts, though the last plans
// may still be in flight. held() are the pages that a slot alone has, so that releasing it frees
// them. Invariant: free() plus the sum of held() is at most what is free or in one slot alone after
// those plans: a page that they evict only moves from a slot to the free ones, so evictions in
// flight are counted as still held and change nothing; what slots share is counted for none, until
// the executor says that one has it alone again. Hence releasing a slot gives held() more, or
// better, and a plan within free() never runs the pool dry. Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/schedule/step_executor.h"
#include "engine/schedule/step_plan.h"
#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {

class PageLedger {
 public:
  explicit PageLedger(const ExecutorLimits& limits)
      : lists_per_slot_(limits.lists_per_slot),
        num_pages_(limits.num_pages),
        sequence_slots_(limits.slots()),
        collected_{
            limits.num_pages,
            std::vector<int64_t>(static_cast<size_t>(limits.slots() + limits.snapshot_slots), 0)},
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

  // Pages that are neither free nor a single sequence's own: those of snapshots, which sequences
  // may have, too.
  int64_t shared() const {
    const auto end = expected_.held.begin() + sequence_slots_;
    return num_pages_ - expected_.free - std::accumulate(expected_.held.begin(), end, int64_t{0});
  }

  // The plan that is being made shares what a slot has: it has nothing alone from now on.
  void Share(int32_t from) {
    shared_slots_.push_back(from);
    expected_.held[static_cast<size_t>(from)] = 0;
  }

  void Submit(const StepPlan& plan) {
    Change change;
    change.dropped = plan.drop_snapshots;
    for (const SharedSlot& snapshot : plan.snapshots) change.snapshots.push_back(snapshot.from);
    change.released = plan.release_slots;
    for (const SharedSlot& start : plan.starts) change.starts.push_back(start.from);
    for (const SwappedSlot& in : plan.swap_ins) change.swapped_in.emplace_back(in.slot, in.pages);
    for (const PlannedSequence& sequence : plan.sequences) {
      const int64_t end = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
      change.taken.emplace_back(sequence.slot, Between(sequence.position, end));
    }
    shared_slots_.clear();
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
    if (result.sole_pages != nullptr) {
      std::copy_n(result.sole_pages, collected_.held.size(), collected_.held.begin());
    } else {
      for (size_t i = 0; i < change.taken.size(); ++i) {
        collected_.held[static_cast<size_t>(change.taken[i].first)] = result.stats[i].live_pages();
      }
    }
    expected_ = collected_;
    for (const Change& later : plans_) Apply(later, &expected_);
    Share(shared_slots_, &expected_);
  }

 private:
  struct Pool {
    int64_t free;
    std::vector<int64_t> held;  // [slots + snapshot_slots]
  };
  // What a plan does to the pool.
  struct Change {
    std::vector<int32_t> dropped, snapshots, released, starts;  // slots; of shares, the first one
    std::vector<std::pair<int32_t, int64_t>> swapped_in;        // slot, pages
    std::vector<std::pair<int32_t, int64_t>> taken;             // likewise; as in plan.sequences
  };

  // The slot that they are shared with has nothing yet.
  static void Share(const std::vector<int32_t>& slots, Pool* pool) {
    for (const int32_t slot : slots) pool->held[static_cast<size_t>(slot)] = 0;
  }

  static void Empty(const std::vector<int32_t>& slots, Pool* pool) {
    for (const int32_t slot : slots) {
      pool->free += std::exchange(pool->held[static_cast<size_t>(slot)], 0);
    }
  }

  static void Apply(const Change& change, Pool* pool) {
    Empty(change.dropped, pool);
    Share(change.snapshots, pool);
    Empty(change.released, pool);
    Share(change.starts, pool);
    Take(change.swapped_in, pool);
    Take(change.taken, pool);
  }

  static void Take(const std::vector<std::pair<int32_t, int64_t>>& taken, Pool* pool) {
    for (const auto& [slot, pages] : taken) {
      pool->free -= pages;
      pool->held[static_cast<size_t>(slot)] += pages;
    }
  }

  const int64_t lists_per_slot_, num_pages_;
  const int32_t sequence_slots_;
  Pool collected_;                     // after the last plan collected
  Pool expected_;                      // after the plans in flight
  std::deque<Change> plans_;           // in flight, the oldest first
  std::vector<int32_t> shared_slots_;  // by the plan that is being made
};

}  // namespace fox
