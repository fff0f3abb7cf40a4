// PrefixCache: decides which prefixes are kept as snapshots, which sequence continues which, and
// what is dropped when pages run short (engine/README.md). A part of the scheduler: one plan is
// open at any time, and the calls in between say what it does to snapshots. Read prefix_tree.h and
// page_budget.h first.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/request/engine_options.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_plan.h"
#include "engine/schedule/page_budget.h"
#include "engine/schedule/prefix_tree.h"
#include "engine/schedule/sequence.h"

namespace fox {

struct PrefixStats {
  int64_t queried_tokens = 0;  // of sequences that started and might have used a snapshot
  int64_t found_tokens = 0;    // that they did not compute
  int64_t dropped = 0;         // snapshots since start
};

class PrefixCache {
 public:
  // Off where the executor takes no snapshots or the share is 0.
  PrefixCache(const ExecutorLimits& limits, const EngineOptions& options, PageLedger& ledger);

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  const PrefixStats& stats() const { return stats_; }

  // Then, for each running sequence, Follow.
  void BeginPlan(Seconds now);
  // Takes the snapshot that a sequence with a slot is due.
  void Follow(Sequence* sequence);
  // Looks for the longest snapshot that a sequence without a slot may start from, and leaves what
  // it found in Sequence::prefix. True: another one is about to leave a longer one; wait.
  bool Match(Sequence* sequence);
  // Keeps what was found through this plan, and returns the tokens that need not be computed.
  int64_t Lock(const Sequence& sequence);
  // The sequence has got a slot and starts from what was found. REQUIRES: `computed` is that.
  void Start(Sequence* sequence);
  void Return(Sequence* sequence);
  // How many of the next `count` tokens may go into one step: it ends where a snapshot is wanted.
  int64_t CutChunk(const Sequence& sequence, int64_t count) const;
  // No other sequence waits for what this one computes any more.
  void Unclaim(Sequence* sequence);
  // Drops snapshots, the least worth first, until `pages` are free or may be; the plan may use as
  // many as it returns. Those from which a sequence starts in this plan are kept.
  int64_t Evict(int64_t pages);
  // Whether dropped snapshots may have freed more pages than is known yet.
  bool evicting() const;
  // The sequence gives up its slot; with `keep` it may leave a snapshot.
  void Leave(Sequence* sequence, bool keep);
  void Flush() { flush_ = !empty(); }

  bool has_pending() const { return flush_ || !drops_.empty() || !snapshots_.empty(); }
  // Pages that the open plan frees by what was dropped, for sure.
  int64_t dropped_pages() const { return dropped_pages_; }
  // Closes the plan, which has all but this. If it is not empty then, Collected follows.
  void FillPlan(StepPlan* plan);
  void Collected();

 private:
  struct Snapshot {
    PrefixTree::Node* node = nullptr;  // null: the slot is free
    int64_t pages = 0;                 // that it added at most
    uint64_t tenant = 0;
    Seconds used = 0;
    int64_t taken = 0, pinned = 0;  // by which plans; of the latter the last
  };

  bool Uses(const Sequence& sequence) const {
    return budget_ > 0 && !sequence.request.bypass_prefix_cache;
  }
  static PrefixTree::Realm RealmOf(const Sequence& sequence) {
    return {sequence.request.cache_salt, sequence.log_tolerance};
  }
  Snapshot& At(int32_t slot) { return snapshots_by_slot_[static_cast<size_t>(slot - first_slot_)]; }
  static int64_t Limit(const Sequence& sequence);
  static bool WillReach(const Sequence& sequence, const PrefixTree::Node& node);
  static void AddStops(Sequence* sequence);
  bool IsInUse(const Snapshot& snapshot) const {
    return snapshot.taken == plan_ || snapshot.pinned == plan_;
  }
  void Claim(Sequence* sequence);
  void Insert(Sequence* sequence, int64_t tokens);
  bool MakeRoom(int64_t pages);
  int32_t Victim() const;
  int64_t Drop(int32_t slot);

  const int32_t first_slot_;
  const int64_t budget_;    // pages
  const int64_t interval_;  // tokens
  PageLedger& ledger_;
  PrefixTree tree_;
  std::vector<Snapshot> snapshots_by_slot_;
  std::vector<int32_t> free_slots_;
  int64_t size_ = 0;
  int64_t version_ = 0;  // another one whenever Match may find something else
  Seconds now_ = 0;
  bool flush_ = false;
  // Of the open plan.
  int64_t plan_ = 1;
  std::vector<int32_t> drops_;
  std::vector<SharedSlot> snapshots_, starts_;
  int64_t dropped_pages_ = 0;
  int64_t unsure_pages_ = 0;  // that were dropped, too, and may be free
  std::deque<int64_t> unsure_in_flight_;
  PrefixStats stats_;
};

}  // namespace fox
