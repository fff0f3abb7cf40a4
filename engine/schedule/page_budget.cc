// PageLedger and PageForecast: the arithmetic. Read page_budget.h first.
#include "engine/schedule/page_budget.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/core/check.h"

namespace fox {

PageLedger::PageLedger(const ExecutorLimits& limits)
    : lists_per_slot_(limits.lists_per_slot),
      num_pages_(limits.num_pages),
      sequence_slots_(limits.slots()),
      collected_{
          limits.num_pages,
          std::vector<int64_t>(static_cast<size_t>(limits.slots() + limits.snapshot_slots), 0)},
      expected_(collected_) {
  FOX_CHECK(lists_per_slot_ > 0 && num_pages_ >= 0);
}

int64_t PageLedger::shared() const {
  const auto end = expected_.held.begin() + sequence_slots_;
  return num_pages_ - expected_.free - std::accumulate(expected_.held.begin(), end, int64_t{0});
}

void PageLedger::Share(int32_t from) {
  FOX_CHECK(0 <= from && static_cast<size_t>(from) < expected_.held.size());
  shared_slots_.push_back(from);
  expected_.held[static_cast<size_t>(from)] = 0;
}

// Shared pages are counted for no slot.
void PageLedger::Apply(const StepPlan& plan, Pool* pool) const {
  const auto held = [pool](int32_t slot) -> int64_t& {
    return pool->held[static_cast<size_t>(slot)];
  };
  const auto empty = [&](int32_t slot) { pool->free += std::exchange(held(slot), 0); };
  const auto take = [&](int32_t slot, int64_t pages) {
    pool->free -= pages;
    held(slot) += pages;
  };
  for (const int32_t slot : plan.drop_snapshots) empty(slot);
  for (const SharedSlot& snapshot : plan.snapshots) held(snapshot.from) = 0;
  for (const int32_t slot : plan.release_slots) empty(slot);
  for (const SlotTransfer& load : plan.loads) take(load.slot, load.pages);
  for (const SharedSlot& start : plan.starts) held(start.from) = 0;
  for (const PlannedSequence& sequence : plan.sequences) {
    const int64_t end = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
    FOX_CHECK(0 <= sequence.slot && sequence.slot < sequence_slots_ && sequence.position < end);
    take(sequence.slot, Between(sequence.position, end));
  }
}

void PageLedger::Check() const {
  for (const Pool* pool : {&collected_, &expected_}) {
    for (const int64_t held : pool->held) FOX_CHECK(held >= 0);
    const int64_t held = std::accumulate(pool->held.begin(), pool->held.end(), int64_t{0});
    FOX_CHECK(pool->free + held <= num_pages_);
  }
}

void PageLedger::Submit(const StepPlan& plan) {
  shared_slots_.clear();
  Apply(plan, &expected_);
  plans_.push_back(plan);
}

// The executor's counts replace the expected ones, and the plans still in flight are counted anew,
// because one of them may release a slot that has evicted pages since.
void PageLedger::Collect(const StepResult& result) {
  FOX_CHECK(!plans_.empty() && 0 <= result.free_pages && result.free_pages <= num_pages_);
  const StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  Apply(plan, &collected_);
  collected_.free = result.free_pages;
  if (result.sole_pages != nullptr) {
    std::copy_n(result.sole_pages, collected_.held.size(), collected_.held.begin());
  } else {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      collected_.held[static_cast<size_t>(plan.sequences[i].slot)] = result.stats[i].live_pages();
    }
  }
  expected_ = collected_;
  for (const StepPlan& later : plans_) Apply(later, &expected_);
  for (const int32_t slot : shared_slots_) expected_.held[static_cast<size_t>(slot)] = 0;
}

void PageForecast::Observe(int64_t from, int64_t to, int64_t pages) {
  constexpr double kMemory = 64;  // samples; older ones count little
  const auto rows = static_cast<uint64_t>(PagesFor(to));
  const auto bits = std::bit_width(rows);
  if (bits == std::bit_width(static_cast<uint64_t>(PagesFor(from)))) return;
  Mean& mean = by_length_[static_cast<size_t>(bits)];
  mean.samples = std::min(mean.samples + 1, kMemory);
  mean.kept += (static_cast<double>(pages) / static_cast<double>(rows) - mean.kept) / mean.samples;
}

double PageForecast::At(int64_t tokens) const {
  const auto rows = static_cast<uint64_t>(PagesFor(tokens));
  auto bits = static_cast<size_t>(std::bit_width(rows));
  while (bits > 0 && by_length_[bits].samples == 0) --bits;
  return static_cast<double>(rows) * (bits == 0 ? lists_ : by_length_[bits].kept);
}

}  // namespace fox
