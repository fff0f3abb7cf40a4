// Allocation of the paged KV cache. See paged_kv.h for the layout.
#include "kernels/interface/paged_kv_storage.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/e4m3.h"

namespace fox {

namespace {

void PoisonPages(Ops& ops, void* pool, int64_t bytes, int byte = 0xff) {
  constexpr int64_t kChunk = int64_t{1} << 24;
  const std::vector<std::byte> poison(static_cast<size_t>(std::min(bytes, kChunk)),
                                      static_cast<std::byte>(byte));
  for (int64_t at = 0; at < bytes; at += kChunk) {
    ops.CopyToDevice(poison.data(), static_cast<size_t>(std::min(kChunk, bytes - at)),
                     static_cast<std::byte*>(pool) + at, nullptr);
  }
}

}  // namespace

template <typename T>
T* PagedKvStorage::Allocate(Ops& ops, int64_t count) {
  buffers_.push_back(ops.Allocate(static_cast<size_t>(count) * sizeof(T)));
  return buffers_.back().as<T>();
}

PagedKvStorage::PagedKvStorage(const PagedKvShape& shape, Ops& ops, const PoolWords& words) {
  FOX_CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.q_heads % shape.kv_heads == 0);
  FOX_CHECK(shape.head_dim > 0 && shape.num_pages >= 0 && shape.max_slots >= 0);
  FOX_CHECK(shape.max_pages >= 0 && std::has_single_bit(static_cast<unsigned>(shape.history)));
  view_.shape = shape;
  const int64_t pages = shape.num_pages, group = shape.group();
  const int64_t lists = shape.max_slots * shape.lists_per_slot();
  const int64_t heads = shape.max_slots * shape.heads_per_slot();
  const int64_t wide = static_cast<int64_t>(SizeOf(shape.residual_dtype()));
  view_.keys = Allocate<std::byte>(ops, pages * shape.kv_bytes());
  view_.values = Allocate<std::byte>(ops, pages * shape.kv_bytes());
  view_.exponents = Allocate<int8_t>(ops, pages * shape.exponent_bytes());
  view_.log_f_offset = Allocate<std::byte>(ops, pages * group * kPageTokens * wide);
  view_.page_cum_log_f = Allocate<double>(ops, pages * group);
  view_.log_mass_bound = Allocate<double>(ops, pages * group);
  view_.log_denominator_bound = Allocate<double>(ops, pages * group);
  view_.free_stack = Allocate<int32_t>(ops, pages);
  view_.free_count = words.free_count != nullptr ? words.free_count : Allocate<int32_t>(ops, 1);
  view_.pool_fault = words.fault != nullptr ? words.fault : Allocate<PoolFault>(ops, 1);
  view_.page_owners = Allocate<uint64_t>(ops, pages);
  view_.sole_pages =
      words.sole_pages != nullptr ? words.sole_pages : Allocate<int32_t>(ops, shape.max_slots);
  view_.page_table = Allocate<int32_t>(ops, lists * shape.max_pages);
  view_.first_live = Allocate<int32_t>(ops, lists);
  view_.length = Allocate<int64_t>(ops, shape.max_slots);
  view_.max_log_evicted_mass = Allocate<double>(ops, lists);
  view_.evicted_log_mass = Allocate<double>(ops, heads);
  view_.cum_log_f = Allocate<double>(ops, heads * shape.history);
  view_.log_mass = Allocate<double>(ops, heads);
  view_.decay_sum = Allocate<double>(ops, heads);
  view_.key_sum = Allocate<double>(ops, heads * shape.head_dim);
  const int64_t rows = static_cast<int64_t>(shape.max_slots) * shape.layers * shape.kv_size();
  const auto allocate_rows = [&](void** last, void** page_end) {
    *last = Allocate<std::byte>(ops, rows * wide * shape.history);
    *page_end = Allocate<std::byte>(ops, rows * wide);
  };
  if (shape.k_shift) allocate_rows(&view_.last_k, &view_.page_end_k);
  if (shape.v_shift) allocate_rows(&view_.last_v, &view_.page_end_v);

  std::vector<int32_t> free(static_cast<size_t>(pages));
  std::iota(free.rbegin(), free.rend(), 0);  // page 0 is taken first
  ops.CopyToDevice(free.data(), free.size() * sizeof(int32_t), view_.free_stack, nullptr);
  ops.CopyToDevice(&shape.num_pages, sizeof(int32_t), view_.free_count, nullptr);
  const PoolFault none = PoolFault::kNone;
  ops.CopyToDevice(&none, sizeof(none), view_.pool_fault, nullptr);
  if (shape.poison_free_pages) {
    PoisonPages(ops, view_.keys, pages * shape.kv_bytes());
    PoisonPages(ops, view_.values, pages * shape.kv_bytes());
    PoisonPages(ops, view_.exponents, pages * shape.exponent_bytes(), kNoExponent & 0xff);
  }
  std::vector<int32_t> slots(static_cast<size_t>(shape.max_slots));
  std::iota(slots.begin(), slots.end(), 0);
  ops.Release(slots.data(), shape.max_slots, view_, nullptr);
}

}  // namespace fox
