// PagedKeys: the keys of sequences in the real page pool: its storage, and the CPU backend's
// operations that take pages, share them, evict them and release slots. Eviction is decided by the
// real rule from page summaries that are made up so that each head keeps what FirstKept says.
// Beside it stands a model of what the pool must hold; Audit compares all of it. Read
// fake_executor.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/request/acp_stats.h"
#include "kernels/interface/paged_kv_storage.h"
#include "tests/engine/sim/fake_keys.h"

namespace fox::sim {

// What one step appends to a slot.
struct Appended {
  int32_t slot = 0;
  int64_t position = 0, count = 0;
  double log_tolerance = kNoMass;
};

struct PageCounts {
  int64_t taken = 0, shared = 0, evicted = 0, released = 0;
};

// What a slot takes in swap space follows from the other limits.
void SetSwapSpace(int64_t bytes, ExecutorLimits* limits);

class PagedKeys {
 public:
  explicit PagedKeys(const FakeOptions& options);

  void Release(const std::vector<int32_t>& slots);
  // The pages of what is swapped in must be free; it must have been swapped out to that place.
  void SwapOut(const SwappedSlot& out);
  void SwapIn(const SwappedSlot& in);
  // `to`, which is empty, becomes what `from` was after its first `tokens`: its last page end.
  void Share(const SharedSlot& shared);
  // After all of the above: the slots' statistics.
  void MoveStats(const StepPlan& plan) { MoveSlots(plan, lists_, &stats_); }
  // Takes the pages of a step; they must be free. Then Write, EndPage and Fold for each sequence.
  void Begin(const std::vector<Appended>& batch);
  // Keys of consecutive tokens.
  void Write(int32_t slot, int64_t position, const std::vector<uint64_t>& token_hashes);
  // The page end at `end` tokens decides what is kept; from here on no more is read. `state`: of
  // the slot's KeyChain.
  void EndPage(int32_t slot, uint64_t state, int64_t end, double log_tolerance);
  // The sum over what is kept up to `position`, read through the page tables.
  uint64_t Fold(int32_t slot, int64_t position) const;
  // Ends the step: what EndPage decided is evicted.
  void Evict();

  int64_t free_pages() const { return *kv_.free_count; }
  // [slots + snapshot_slots]: pages that a slot alone has.
  const int32_t* sole_pages() const { return kv_.sole_pages; }
  // Since the slot's last release.
  const AcpStats& stats(int32_t slot) const { return stats_[static_cast<size_t>(slot)]; }
  // The first page of each list of each slot.
  const std::vector<int32_t>& first_pages() const { return first_; }
  const PageCounts& counts() const { return counts_; }
  // The first thing that was wrong; empty: nothing.
  const std::string& violation() const { return violation_; }
  // Exact, all of it: owners of pages, live ranges, lengths, poison. A page without an owner is
  // free, and no other; several have one only if it is full and in the same place for all.
  void Audit();

 private:
  // What was swapped out.
  struct SavedSlot {
    int64_t length = 0;
    std::vector<int32_t> first;
    int64_t pages = 0;
  };

  void Violate(const char* what, int64_t detail);
  void AuditSlot(int32_t slot);
  void Own(int32_t page, int32_t slot, int64_t place, bool full);
  void AuditOwners();
  void PoisonFreed(int32_t free_before);
  BatchView View() const;  // of batch_
  uint64_t* Page(int32_t page) const {
    return static_cast<uint64_t*>(kv_.keys) + static_cast<int64_t>(page) * kPageTokens;
  }

  const FakeOptions& options_;
  const int64_t lists_;
  const int32_t slots_;  // and those of snapshots
  std::unique_ptr<Ops> ops_;
  PagedKvStorage cache_;
  const PagedKv& kv_;
  std::vector<double> infinity_;  // B and U are unknown
  // The model.
  std::vector<int64_t> length_;  // by slot
  std::vector<int32_t> first_;   // by slot and list: after the page ends so far
  std::vector<AcpStats> stats_;  // by slot
  std::vector<std::byte> swap_space_;
  std::map<int64_t, SavedSlot> swapped_;  // by place
  std::vector<Appended> batch_;
  // What an audit finds, by page: the free place, or list and page of it; the owners.
  std::vector<int64_t> places_;
  std::vector<uint64_t> owners_;
  std::vector<int32_t> sole_;  // by slot
  uint64_t audits_ = 0;
  // The batch as the operations see it.
  std::vector<int32_t> batch_slots_;
  std::vector<int64_t> row_begin_, positions_, evicted_;
  std::vector<double> log_tolerances_, evicted_mass_;
  PageCounts counts_;
  std::string violation_;
};

}  // namespace fox::sim
