// PagedKeys: the keys of sequences in the real page pool: its storage, and the CPU backend's
// operations that take, share and evict pages and release slots. The real rule decides on eviction,
// from made-up page summaries that make each head keep the pages that FirstKept says. A model holds
// the expected content of the pool; Audit compares all of it. Read fake_executor.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request/acp_stats.h"
#include "kernels/interface/paged_kv_storage.h"
#include "tests/engine/sim/fake_keys.h"

namespace fox::sim {

// Tokens that one step appends to a slot.
struct Appended {
  int32_t slot = 0;
  int64_t position = 0, count = 0;
  double log_tolerance = kNoMass;
};

struct PageCounts {
  int64_t taken = 0, shared = 0, evicted = 0, released = 0;
};

// Sets the limits of staging buffers for images of at most `pages` pages, each with the KeyChain of
// its slot behind it.
void SetStaging(int32_t buffers, int64_t pages, ExecutorLimits* limits);

class PagedKeys {
 public:
  explicit PagedKeys(const FakeOptions& options);

  void Release(const std::vector<int32_t>& slots);
  // The empty slot `to` becomes a copy of `from` after its first `tokens` tokens, its last page
  // end.
  void Share(const SharedSlot& shared);
  // The image of a snapshot.
  void Save(const SlotTransfer& save, std::byte* image);
  void Load(const SlotTransfer& load, std::byte* image);
  // After all of the above: the slots' statistics.
  void MoveStats(const StepPlan& plan) { MoveSlots(plan, lists_, &stats_); }
  // Takes the pages of a step; they must be free. Then Write, EndPage and Fold for each sequence.
  void Begin(const std::vector<Appended>& batch);
  // Keys of consecutive tokens.
  void Write(int32_t slot, int64_t position, const std::vector<uint64_t>& token_hashes);
  // Decides at the page end at `end` tokens which pages are kept; from here on no other page is
  // read. `state`: of the slot's KeyChain.
  void EndPage(int32_t slot, uint64_t state, int64_t end, double log_tolerance);
  // The sum over the kept keys up to `position`, read through the page tables.
  uint64_t Fold(int32_t slot, int64_t position) const;
  // Ends the step: evicts the pages that EndPage decided on.
  void Evict();

  int64_t free_pages() const { return *kv_.free_count; }
  // [slots + snapshot_slots]: pages that a slot alone has.
  const int32_t* sole_pages() const { return kv_.sole_pages; }
  // Since the slot's last release.
  const AcpStats& stats(int32_t slot) const { return stats_[static_cast<size_t>(slot)]; }
  // The first page of each list of each slot.
  const std::vector<int32_t>& first_pages() const { return first_; }
  const PageCounts& counts() const { return counts_; }
  // The first violation; empty: none.
  const std::string& violation() const { return violation_; }
  // Exact, all of it: owners of pages, live ranges, lengths, poison. A page without an owner is
  // free, and no other; several have one only if it is full and in the same place for all.
  void Audit();

 private:
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
  const int32_t slots_;  // with slots of snapshots
  std::unique_ptr<Ops> ops_;
  PagedKvStorage cache_;
  const PagedKv& kv_;
  std::vector<double> infinity_;  // B and U are unknown
  // The model.
  std::vector<int64_t> length_;  // by slot
  std::vector<int32_t> first_;   // by slot and list: after the page ends so far
  std::vector<AcpStats> stats_;  // by slot
  std::vector<Appended> batch_;
  // An audit's findings, by page: its place in the free list or in a slot's list; its owners.
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
