// PagedKvStorage: owns the arrays of a PagedKv, in a backend's memory, allocated once. All
// pages start free, all slots empty. engine/run/model_runner has one, and kernel tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/interface/ops.h"

namespace fox {

// Zeroed memory of the backend for these members of PagedKv; null: the storage allocates its own.
struct PoolWords {
  int32_t* free_count = nullptr;
  PoolFault* fault = nullptr;
  int32_t* sole_pages = nullptr;
};

class PagedKvStorage {
 public:
  // `words` must outlive the storage.
  PagedKvStorage(const PagedKvShape& shape, Ops& ops, const PoolWords& words = {});

  const PagedKv& view() const { return view_; }

 private:
  template <typename T>
  T* Allocate(Ops& ops, int64_t count);

  std::vector<Buffer> buffers_;
  PagedKv view_;
};

}  // namespace fox
