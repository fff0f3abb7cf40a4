// SnapshotTransfers: the states of the buffers. Read snapshot_transfers.h first.
#include "engine/store/snapshot_transfers.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace fox {
namespace {

bool IsSame(const StoredSnapshot& a, const StoredSnapshot& b) {
  return a.cache_salt == b.cache_salt && a.log_tolerance == b.log_tolerance && a.tokens == b.tokens;
}

}  // namespace

SnapshotTransfers::SnapshotTransfers(const ExecutorLimits& limits, SnapshotStore* store)
    : limits_(limits),
      store_(limits.staging_buffers > 0 ? store : nullptr),
      buffers_(static_cast<size_t>(limits.staging_buffers)) {}

size_t SnapshotTransfers::free() const {
  return static_cast<size_t>(std::count_if(
      buffers_.begin(), buffers_.end(), [](const Buffer& b) { return b.state == State::kFree; }));
}

int64_t SnapshotTransfers::saving() const {
  return std::count_if(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) {
    return buffer.state == State::kSaving || buffer.state == State::kWriting;
  });
}

bool SnapshotTransfers::IsSaving(const StoredSnapshot& what) const {
  return std::any_of(buffers_.begin(), buffers_.end(), [&what](const Buffer& buffer) {
    const bool saving = buffer.state == State::kSaving || buffer.state == State::kWriting;
    return saving && !buffer.abandoned && IsSame(buffer.what, what);
  });
}

// REQUIRES: a buffer is free.
int32_t SnapshotTransfers::TakeBuffer(State state, StoredSnapshot what) {
  const auto buffer = std::find_if(buffers_.begin(), buffers_.end(),
                                   [](const Buffer& b) { return b.state == State::kFree; });
  FOX_CHECK(buffer != buffers_.end());
  *buffer = {state, /*abandoned=*/false, /*read=*/0, /*tenant=*/0, std::move(what)};
  return static_cast<int32_t>(buffer - buffers_.begin());
}

void SnapshotTransfers::Save(int32_t slot, StoredSnapshot what) {
  FOX_CHECK(MaySave() && Fits(what.pages));
  const int64_t pages = what.pages, tokens = static_cast<int64_t>(what.tokens.size());
  const double mass = what.max_log_evicted_mass;
  saves_.push_back({slot, TakeBuffer(State::kSaving, std::move(what)), pages, tokens, mass});
}

int64_t SnapshotTransfers::Read(StoredSnapshot what, uint64_t tenant) {
  for (const Buffer& buffer : buffers_) {
    if (buffer.state == State::kReading && !buffer.abandoned && IsSame(buffer.what, what)) {
      return buffer.read;
    }
  }
  if (free() == 0) return 0;
  const int32_t buffer = TakeBuffer(State::kReading, what);
  buffers_[Index(buffer)].tenant = tenant;
  store_->Read(buffer, std::move(what));
  return buffers_[Index(buffer)].read = ++reads_;
}

bool SnapshotTransfers::IsReading(int64_t read) const {
  return std::any_of(buffers_.begin(), buffers_.end(), [read](const Buffer& buffer) {
    return buffer.state == State::kReading && buffer.read == read && !buffer.abandoned;
  });
}

bool SnapshotTransfers::Poll() {
  if (!has_news()) return false;
  for (SnapshotStore::Done& done : store_->TakeDone()) {
    Buffer& buffer = buffers_[Index(done.buffer)];
    FOX_CHECK(buffer.state == (done.read ? State::kReading : State::kWriting));
    const bool arrives = done.read && done.ok && !buffer.abandoned && Fits(done.what.pages);
    buffer.state = arrives ? State::kArrived : State::kFree;
    buffer.what = std::move(done.what);
  }
  return true;
}

std::vector<SnapshotTransfers::Arrival> SnapshotTransfers::TakeArrivals() {
  std::vector<Arrival> arrivals;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    Buffer& buffer = buffers_[i];
    if (buffer.state != State::kArrived) continue;
    arrivals.push_back({static_cast<int32_t>(i), buffer.tenant, std::move(buffer.what)});
  }
  return arrivals;
}

void SnapshotTransfers::Load(const Arrival& arrival, int32_t slot) {
  Buffer& buffer = buffers_[Index(arrival.buffer)];
  FOX_CHECK(buffer.state == State::kArrived);
  buffer.state = State::kLoading;
  loaded_pages_ += arrival.what.pages;
  loads_.push_back({slot, arrival.buffer, arrival.what.pages,
                    static_cast<int64_t>(arrival.what.tokens.size()),
                    arrival.what.max_log_evicted_mass});
}

void SnapshotTransfers::Abandon() {
  for (Buffer& buffer : buffers_) {
    if (buffer.state == State::kArrived) buffer.state = State::kFree;
    buffer.abandoned = true;
  }
}

void SnapshotTransfers::FillPlan(StepPlan* plan) {
  plan->saves = std::exchange(saves_, {});
  plan->loads = std::exchange(loads_, {});
  loaded_pages_ = 0;
}

void SnapshotTransfers::Collected(const StepPlan& plan) {
  for (const SlotTransfer& load : plan.loads) {
    FOX_CHECK(buffers_[Index(load.buffer)].state == State::kLoading);
    buffers_[Index(load.buffer)].state = State::kFree;
  }
  for (const SlotTransfer& save : plan.saves) {
    Buffer& buffer = buffers_[Index(save.buffer)];
    FOX_CHECK(buffer.state == State::kSaving);
    buffer.state = buffer.abandoned ? State::kFree : State::kWriting;
    if (buffer.state == State::kWriting) store_->Write(save.buffer, buffer.what);
  }
}

}  // namespace fox
