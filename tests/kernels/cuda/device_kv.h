// DeviceKv, DeviceWork and DeviceBatch: a paged cache, a step's plan and a batch in device memory
// for tests of the kernels that fill them. Poisoned wherever a fresh server has not written.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/core/e4m3.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/batch_view.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/slot_contents.h"

namespace fox::cuda::testing {

using fox::testing::Contents;
using fox::testing::Difference;

// Makes `array` anew, poisoned or a copy.
template <typename T>
T* Set(DeviceArray<T>& array, size_t size) {
  array = DeviceArray<T>(size);
  return array.data();
}
template <typename T>
T* Set(DeviceArray<T>& array, const std::vector<T>& host) {
  array = DeviceArray<T>(host);
  return array.data();
}

// A cache of narrow heads, for tests of the page pool.
inline PagedKvShape NarrowShape(int layers, int kv_heads, int group, int slots, int max_pages,
                                int num_pages) {
  PagedKvShape shape;
  shape.layers = layers;
  shape.q_heads = kv_heads * group;
  shape.kv_heads = kv_heads;
  shape.head_dim = 16;
  shape.dtype = DType::kBF16;
  shape.num_pages = num_pages;
  shape.max_slots = slots;
  shape.max_pages = max_pages;
  return shape;
}

// All pages free, all slots empty; pages of bf16, or of codes, which are half as many of uint16_t.
struct DeviceKv {
  explicit DeviceKv(const PagedKvShape& shape) {
    const size_t dim = static_cast<size_t>(shape.head_dim), summaries = Pages(shape) * Group(shape);
    const auto slots = static_cast<size_t>(shape.max_slots);
    const std::vector<double> zeros(Heads(shape), 0), nothing(Heads(shape), kNothing);
    view.shape = shape;
    view.keys = Set(keys, Pages(shape) * static_cast<size_t>(shape.kv_bytes()) / sizeof(uint16_t));
    view.values = Set(values, keys.size());
    const size_t exponent_bytes = Pages(shape) * static_cast<size_t>(shape.exponent_bytes());
    view.exponents = Set(exponents, std::vector<int8_t>(exponent_bytes, kNoExponent));
    view.log_f_offset = Set(log_f_offset, summaries * kPageTokens);
    view.page_cum_log_f = Set(page_cum_log_f, summaries);
    view.log_mass_bound = Set(log_mass_bound, summaries);
    view.log_denominator_bound = Set(log_denominator_bound, summaries);
    view.free_stack = Set(free_stack, Descending(shape.num_pages));
    view.free_count = Set(free_count, std::vector<int32_t>{shape.num_pages});
    view.page_owners = Set(page_owners, std::vector<uint64_t>(Pages(shape), 0));
    view.sole_pages = Set(sole_pages, std::vector<int32_t>(slots, 0));
    view.page_table = Set(page_table, Lists(shape) * static_cast<size_t>(shape.max_pages));
    view.first_live = Set(first_live, std::vector<int32_t>(Lists(shape), 0));
    view.pool_fault = Set(pool_fault, std::vector<PoolFault>{PoolFault::kNone});
    view.length = Set(length, std::vector<int64_t>(slots, 0));
    view.max_log_evicted_mass =
        Set(max_log_evicted_mass, std::vector<double>(Lists(shape), kNothing));
    view.evicted_log_mass = Set(evicted_log_mass, nothing);
    view.cum_log_f = Set(cum_log_f, zeros);
    view.log_mass = Set(log_mass, nothing);
    view.decay_sum = Set(decay_sum, zeros);
    view.key_sum = Set(key_sum, std::vector<double>(Heads(shape) * dim, 0));
    view.last_k = Set(last_k, Lists(shape) * dim);
    view.last_v = Set(last_v, Lists(shape) * dim);
    view.page_end_k = Set(page_end_k, Lists(shape) * dim);
    view.page_end_v = Set(page_end_v, Lists(shape) * dim);
  }

  // BeginStep of these rows of one sequence; done when it returns, unlike what follows.
  void Begin(int slot, int64_t position, int64_t rows) const;
  void Release(int32_t slot) const {
    EXPECT_EQ(cuda::Release(&slot, 1, view, nullptr), cudaSuccess);
  }
  void Share(int from, int to) const {
    EXPECT_EQ(cuda::Share(from, to, view, nullptr), cudaSuccess);
  }
  PoolFault Fault() const { return pool_fault.ToHost()[0]; }
  int32_t FreeCount() const { return free_count.ToHost()[0]; }
  // f(array) for all contents of pages and states, except the arrays that say which slot owns a
  // page.
  template <typename F>
  void ForEachContent(const F& f) {
    for (auto* array :
         {&page_cum_log_f, &log_mass_bound, &log_denominator_bound, &max_log_evicted_mass,
          &evicted_log_mass, &cum_log_f, &log_mass, &decay_sum, &key_sum}) {
      f(*array);
    }
    for (auto* array : {&log_f_offset, &last_k, &last_v, &page_end_k, &page_end_v}) f(*array);
    for (auto* array : {&keys, &values}) f(*array);
    f(exponents);
  }

  Contents ContentsOf(int slot) const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return fox::testing::SlotContents(view, slot, false, [](void* to, const void* from, size_t n) {
      EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost), cudaSuccess);
    });
  }

  // Owners of pages and the counts of pages agree with the tables.
  void ExpectOwnersOfTheTables() const {
    const PagedKvShape& shape = view.shape;
    const std::vector<int32_t> table = page_table.ToHost(), first = first_live.ToHost();
    const std::vector<int64_t> lengths = length.ToHost();
    std::vector<uint64_t> owners(Pages(shape), 0);
    const auto lists = static_cast<size_t>(shape.lists_per_slot());
    for (size_t list = 0; list < Lists(shape); ++list) {
      const size_t slot = list / lists;
      for (int p = first[list]; p < PagesFor(lengths[slot]); ++p) {
        const size_t at = list * static_cast<size_t>(shape.max_pages) + static_cast<size_t>(p);
        owners[static_cast<size_t>(table[at])] += OwnerWord(static_cast<int>(slot));
      }
    }
    EXPECT_EQ(page_owners.ToHost(), owners);
    std::vector<int32_t> sole(static_cast<size_t>(shape.max_slots), 0);
    int32_t used = 0;
    for (const uint64_t word : owners) {
      if (word != 0) ++used;
      if (NumOwners(word) == 1) ++sole[static_cast<size_t>(SoleOwner(word))];
    }
    EXPECT_EQ(sole_pages.ToHost(), sole);
    EXPECT_EQ(FreeCount(), shape.num_pages - used);
  }

  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  static size_t Pages(const PagedKvShape& s) { return static_cast<size_t>(s.num_pages); }
  static size_t Group(const PagedKvShape& s) { return static_cast<size_t>(s.group()); }
  static size_t Lists(const PagedKvShape& s) {
    return static_cast<size_t>(s.max_slots * s.lists_per_slot());
  }
  static size_t Heads(const PagedKvShape& s) { return Lists(s) * Group(s); }
  static std::vector<int32_t> Descending(int count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    std::iota(ids.rbegin(), ids.rend(), 0);
    return ids;
  }

  DeviceArray<uint16_t> keys, values;
  DeviceArray<int8_t> exponents;
  DeviceArray<float> log_f_offset;
  DeviceArray<double> page_cum_log_f, log_mass_bound, log_denominator_bound;
  DeviceArray<int32_t> free_stack, free_count;
  DeviceArray<uint64_t> page_owners;
  DeviceArray<int32_t> sole_pages, page_table, first_live;
  DeviceArray<PoolFault> pool_fault;
  DeviceArray<int64_t> length;
  DeviceArray<double> max_log_evicted_mass, evicted_log_mass, cum_log_f, log_mass, decay_sum,
      key_sum;
  DeviceArray<float> last_k, last_v, page_end_k, page_end_v;
  PagedKv view;
};

// Room for the plan of steps with up to `rows` rows and `seqs` sequences.
struct DeviceWork {
  DeviceWork(const PagedKvShape& shape, int64_t rows, int seqs) {
    view.max_blocks = view.max_tiles = static_cast<int>(MaxRowBlocks(rows, seqs));
    const auto most = static_cast<size_t>(view.max_blocks),
               layers = static_cast<size_t>(shape.layers);
    view.blocks = Set(blocks, most);
    view.num_blocks = Set(num_blocks, 1);
    view.tiles = Set(tiles, most);
    view.num_tiles = Set(num_tiles, 1);
    view.max_seq_heads = seqs * shape.q_heads;
    view.seq_heads = Set(seq_heads, layers * static_cast<size_t>(view.max_seq_heads));
    view.block_starts = Set(block_starts, layers * kDecodeBlocks);
    view.decode_blocks = kDecodeBlocks;
    view.max_splits = std::numeric_limits<int>::max();
    view.page_sums = Set(
        page_sums, most * static_cast<size_t>(shape.q_heads * (shape.head_dim + kRecordHeader)));
  }

  static constexpr int kDecodeBlocks = 7;

  DeviceArray<RowBlock> blocks, tiles;
  DeviceArray<int32_t> num_blocks, num_tiles;
  DeviceArray<SeqHead> seq_heads;
  DeviceArray<BlockStart> block_starts;
  DeviceArray<double> page_sums;
  StepSchedule view;
};

// One sequence's share of a step; slot -1 pads.
struct BatchEntry {
  int slot = -1;
  int64_t position = 0;
  int64_t rows = 1;
  double log_tolerance = -10;
};

// A batch in host memory. Its first sequences with one row each are decodes.
struct HostBatch {
  explicit HostBatch(const std::vector<BatchEntry>& entries) {
    for (const BatchEntry& entry : entries) {
      slot.push_back(entry.slot);
      position.push_back(entry.position);
      log_tolerance.push_back(entry.log_tolerance);
      row_begin.push_back(row_begin.back() + entry.rows);
    }
    view.num_seqs = static_cast<int>(entries.size());
    view.num_rows = row_begin.back();
    while (view.num_decodes < view.num_seqs &&
           entries[static_cast<size_t>(view.num_decodes)].rows == 1) {
      ++view.num_decodes;
    }
    view.slot = slot.data();
    view.row_begin = row_begin.data();
    view.position = position.data();
    view.log_tolerance = log_tolerance.data();
  }

  std::vector<int32_t> slot;
  std::vector<int64_t> row_begin{0}, position;
  std::vector<double> log_tolerance;
  BatchView view;
};

// A HostBatch in device memory.
struct DeviceBatch {
  explicit DeviceBatch(const std::vector<BatchEntry>& entries) {
    const HostBatch host(entries);
    view = host.view;
    view.slot = memory.Copy(host.slot);
    view.row_begin = memory.Copy(host.row_begin);
    view.position = memory.Copy(host.position);
    view.log_tolerance = memory.Copy(host.log_tolerance);
  }

  DeviceMemory memory;
  BatchView view;
};

inline void DeviceKv::Begin(int slot, int64_t position, int64_t rows) const {
  const DeviceBatch batch({{slot, position, rows, -10}});
  const DeviceWork work(view.shape, rows, 1);
  EXPECT_EQ(BeginStep(batch.view, view, work.view, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace fox::cuda::testing
