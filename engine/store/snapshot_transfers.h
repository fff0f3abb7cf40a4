// SnapshotTransfers: the staging buffers in which snapshots travel between the pool and a
// SnapshotStore. A part of PrefixCache, which decides what travels. A buffer is free, or on one of
// two ways:
//   save: in a plan, then with the store, which writes it
//   load: with the store, which reads it; arrived; then in a plan
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/request/executor_limits.h"
#include "engine/request/snapshot_store.h"
#include "engine/request/step_plan.h"

namespace fox {

class SnapshotTransfers {
 public:
  // A snapshot that was read and waits in a buffer.
  struct Arrival {
    int32_t buffer = 0;
    uint64_t tenant = 0;  // that asked for it
    StoredSnapshot what;
  };

  // `store` null: nothing travels.
  SnapshotTransfers(const ExecutorLimits& limits, SnapshotStore* store);

  bool on() const { return store_ != nullptr; }
  SnapshotStore* store() const { return store_; }
  bool Fits(int64_t pages) const { return limits_.ImageBytes(pages) <= limits_.staging_bytes; }
  // True if there is a buffer for Save. The last free buffer is kept for a read.
  bool MaySave() const { return free() > (buffers_.size() > 1 ? 1 : 0); }
  // The open plan saves the snapshot. REQUIRES: MaySave(), Fits(what.pages).
  void Save(int32_t slot, StoredSnapshot what);
  // Reads the snapshot, unless it is being read. Returns the number of that read; 0: no buffer is
  // free.
  int64_t Read(StoredSnapshot what, uint64_t tenant);
  // True until the read has arrived or failed.
  bool IsReading(int64_t read) const;
  // Takes the results of the store. True if there were any.
  bool Poll();
  bool has_news() const { return on() && store_->has_done(); }
  std::vector<Arrival> TakeArrivals();
  // The open plan makes the snapshot in `slot` of the arrival.
  void Load(const Arrival& arrival, int32_t slot);
  void GiveUp(const Arrival& arrival) { buffers_[Index(arrival.buffer)].state = State::kFree; }
  // Nothing that is being saved or read arrives.
  void Abandon();

  bool IsSaving(const StoredSnapshot& what) const;
  int64_t saving() const;                                 // snapshots on their way to the store
  int64_t loaded_pages() const { return loaded_pages_; }  // by the open plan
  bool has_pending() const { return !saves_.empty() || !loads_.empty(); }
  // Adds saves and loads to the plan.
  void FillPlan(StepPlan* plan);
  // The plan is no longer in flight.
  void Collected(const StepPlan& plan);

 private:
  enum class State : uint8_t { kFree, kSaving, kWriting, kReading, kArrived, kLoading };
  struct Buffer {
    State state = State::kFree;
    bool abandoned = false;
    int64_t read = 0;  // its number
    uint64_t tenant = 0;
    StoredSnapshot what;
  };

  static size_t Index(int32_t buffer) { return static_cast<size_t>(buffer); }
  size_t free() const;
  int32_t TakeBuffer(State state, StoredSnapshot what);

  const ExecutorLimits limits_;
  SnapshotStore* const store_;
  std::vector<Buffer> buffers_;
  int64_t reads_ = 0;
  // Parts of the open plan.
  std::vector<SlotTransfer> saves_, loads_;
  int64_t loaded_pages_ = 0;
};

}  // namespace fox
