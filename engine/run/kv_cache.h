// KvCache: owns the memory behind a PagedKv and answers questions about it. Pages are taken, shared
// and given back by the backend (Ops::BeginStep, Share, SwapIn, Evict, Release), never here; see
// kernels/paged_kv.h for the layout and the invariants that Audit checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/paged_kv_storage.h"

namespace fox {

// One thread at a time, the one that runs the operations.
class KvCache {
 public:
  // Allocates everything; `ops` must outlive the cache. words: see PagedKvStorage.
  KvCache(const PagedKvShape& shape, Ops& ops, const PoolWords& words = {});

  const PagedKv& view() const { return view_; }
  // Empties the slots; their pages without another owner are free afterwards.
  void Release(const std::vector<int32_t>& slots);
  // See Ops::Share.
  void Share(int32_t from, int32_t to);
  // See Ops::SwapOut and Ops::SwapIn.
  void SwapOut(int32_t slot, const HostSlot& to);
  void SwapIn(const HostSlot& from, int32_t slot);
  int64_t FreePages() const;
  // First live page of each list of the slot: [layers * kv_heads].
  std::vector<int32_t> FirstLive(int slot) const;
  // Pages that the slot alone has.
  int64_t SolePages(int slot) const;
  // Every page is free or live in a list, several slots have one only in the same place and full,
  // and live ranges are sane; where pages are shared, owners and sole pages are counted right.
  // Internal otherwise. Costs O(live pages).
  absl::Status Audit() const;

  // Bytes beside the pages: tables and running states.
  static size_t FixedBytes(const PagedKvShape& shape);

 private:
  template <typename T>
  std::vector<T> Read(const T* device, int64_t count) const;
  absl::Status AuditOwners(const std::vector<uint64_t>& owners) const;

  Ops& ops_;
  PagedKvStorage storage_;
  const PagedKv& view_;
};

}  // namespace fox
