// PrefixCache: decides which prefixes are kept as snapshots, which snapshot a sequence starts from,
// and which snapshots are dropped when pages run short (engine/README.md). A part of the scheduler:
// one plan is open at any time, from one FillPlan to the next, and the calls in between add to it.
// Read prefix_tree.h and page_budget.h first.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/engine_options.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_plan.h"
#include "engine/schedule/page_budget.h"
#include "engine/schedule/prefix_tree.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "engine/store/snapshot_transfers.h"

namespace fox {

struct PrefixStats {
  int64_t queried_tokens = 0;  // of all sequences that started and may use snapshots
  int64_t found_tokens = 0;    // part of these that was in a snapshot
  int64_t dropped = 0;         // snapshots dropped
  int64_t lost = 0;            // part of these for which there was no staging buffer
  int64_t landed = 0;          // snapshots that came from the store
};

class PrefixCache {
 public:
  // Without snapshot slots or with a share of 0 the cache is off. `store`: where snapshots go
  // before they are dropped, and come back from; null: nowhere.
  PrefixCache(const ExecutorLimits& limits, const EngineOptions& options, PageLedger& ledger,
              const ServiceTimes& times, SnapshotStore* store);

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  const PrefixStats& stats() const { return stats_; }

  // Aborts if slots, snapshots and counts contradict each other.
  void Check() const;
  // Opens a plan. The caller then calls Follow for each running sequence.
  void BeginPlan(Seconds now);
  // Takes the snapshot that a sequence with a slot is due, if any.
  void Follow(Sequence* sequence);
  // Finds the longest snapshot that a sequence without a slot may start from and stores it in
  // Sequence::prefix. True: wait, because another sequence will soon leave a longer snapshot, or
  // because the store is reading one.
  bool Match(Sequence* sequence);
  // Keeps the snapshot that Match found through this plan, and returns its tokens, which need not
  // be computed.
  int64_t Lock(const Sequence& sequence);
  // The sequence has a slot and starts from the snapshot found. REQUIRES: `computed` is the number
  // of its tokens.
  void Start(Sequence* sequence);
  // How many of the next `count` tokens may go into one step, which ends where a snapshot is
  // needed.
  int64_t CutChunk(const Sequence& sequence, int64_t count) const;
  // From now on no other sequence waits for snapshots of this one.
  void Unclaim(Sequence* sequence);
  // Drops snapshots, the least valuable first, until `pages` pages are free or may turn out to be.
  // Returns the pages that are surely free: the open plan may use them. Keeps snapshots from which
  // a sequence starts in this plan.
  int64_t Evict(int64_t pages);
  // True if dropped snapshots may have freed more pages than is known yet.
  bool evicting() const;
  // The sequence gives up its slot; `keep`: it may leave a snapshot.
  void Leave(Sequence* sequence, bool keep);
  // The next plan drops all snapshots of the pool; the store keeps its own.
  void Flush();
  // The next plan drops the snapshots of the namespace of this NamespaceName (digest.h), "": all;
  // and they are removed from the store.
  void Clear(const std::string& only);

  // Makes snapshots of images that the store has read. `room`: the pages that the open plan may
  // take. Returns the pages that it took, less those of snapshots dropped for it.
  int64_t Land(int64_t room);
  // Saves the most valuable snapshot that has not been used for a while, or, after SaveAll, any.
  // For plans without sequences, which a save could delay, and after SaveAll for all.
  void SaveOne();
  void SaveAll() { save_all_ = true; }
  bool saves_all() const { return save_all_; }
  // Snapshots that SaveAll has still to write.
  int64_t unsaved() const { return transfers_.on() ? unoffered() + transfers_.saving() : 0; }
  // True if the store has done something since the last Land.
  bool has_news() const { return transfers_.has_news(); }
  // When to make a plan even without other work.
  Seconds next_event() const { return next_event_; }

  bool has_pending() const {
    return has_doomed_ || !drops_.empty() || !snapshots_.empty() || transfers_.has_pending() ||
           (save_all_ && transfers_.on() && transfers_.MaySave() && unoffered() > 0);
  }
  // Pages that the snapshots dropped by the open plan surely free.
  int64_t dropped_pages() const { return dropped_pages_; }
  // Adds drops, snapshots and starts to the plan, which is complete otherwise, and closes it. A
  // plan that is not empty is in flight until Collected.
  void FillPlan(StepPlan* plan);
  void Collected(const StepPlan& plan, const StepResult& result);

 private:
  struct Snapshot {
    PrefixTree::Node* node = nullptr;  // null: the slot is free
    int64_t pages = 0;                 // pages of the sequence that were its own until then
    uint64_t tenant = 0;
    Seconds used = 0;    // last time
    int64_t taken = 0;   // plan that takes it
    int64_t pinned = 0;  // last plan in which a sequence starts from it
    // As of the plan that took it, which is collected. kept_pages -1: it is not.
    int64_t kept_pages = -1;
    double max_log_evicted_mass = kNoMass;
    bool offered = false;  // to the store, or too large for it, or it came from there
    bool doomed = false;   // the next plan drops it
  };

  bool Uses(const Sequence& sequence) const {
    return budget_ > 0 && !sequence.request.bypass_prefix_cache;
  }
  static PrefixTree::CacheNamespace NamespaceOf(const Sequence& sequence) {
    return {sequence.request.cache_salt, sequence.log_tolerance};
  }
  Snapshot& At(int32_t slot) { return snapshots_by_slot_[static_cast<size_t>(slot - first_slot_)]; }
  static int64_t Limit(const Sequence& sequence);
  static bool WillReach(const Sequence& sequence, const PrefixTree::Node& node);
  static void AddStops(Sequence* sequence);
  bool IsInUse(const Snapshot& snapshot) const {
    return snapshot.taken == plan_ || snapshot.pinned == plan_;
  }
  bool AwaitsRead(Sequence* sequence);
  bool IsWorthSaving(const Snapshot& snapshot) const;
  Seconds SaveTime(const Snapshot& snapshot) const;
  int64_t unoffered() const;
  bool Save(int32_t slot);
  bool LandOne(const SnapshotTransfers::Arrival& arrival, int64_t room);
  void Claim(Sequence* sequence);
  void Insert(Sequence* sequence, int64_t tokens);
  bool MakeRoom(int64_t pages);
  std::vector<std::pair<double, int32_t>> Scores() const;
  int32_t Victim() const;
  int64_t Drop(int32_t slot, bool save);

  const int32_t first_slot_;
  const int64_t budget_;                 // pages
  const int64_t interval_, min_stored_;  // tokens
  PageLedger& ledger_;
  const ServiceTimes& times_;
  SnapshotTransfers transfers_;
  PrefixTree tree_;
  std::vector<Snapshot> snapshots_by_slot_;
  std::vector<int32_t> free_slots_;
  int64_t size_ = 0;
  int64_t version_ = 0;  // changes whenever Match may find something else
  Seconds now_ = 0;
  bool has_doomed_ = false;  // some snapshot is
  bool save_all_ = false;
  Seconds next_event_ = kNever;
  // The open plan.
  int64_t plan_ = 1;
  std::vector<int32_t> drops_;
  std::vector<SharedSlot> snapshots_, starts_;
  int64_t dropped_pages_ = 0;
  int64_t unsure_pages_ = 0;  // further pages of dropped snapshots, which may be free
  struct InFlight {
    int64_t plan, unsure_pages;
  };
  std::deque<InFlight> in_flight_;
  PrefixStats stats_;
};

}  // namespace fox
