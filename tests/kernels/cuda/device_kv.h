// DeviceKv, DeviceWork and DeviceBatch: a paged cache, a step's plan and a batch in device memory
// for tests of the kernels that fill them. Poisoned wherever a fresh server has not written.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {

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

// All pages free, all slots empty; bf16 pages.
struct DeviceKv {
  explicit DeviceKv(const PagedKvShape& shape)
      : keys(Pages(shape) * kPageTokens * static_cast<size_t>(shape.head_dim)),
        values(keys.size()),
        log_f_offset(Pages(shape) * Group(shape) * kPageTokens),
        page_cum_log_f(Pages(shape) * Group(shape)),
        log_mass_bound(page_cum_log_f.size()),
        log_denominator_bound(page_cum_log_f.size()),
        max_key_norm(page_cum_log_f.size()),
        free_stack(Descending(shape.num_pages)),
        free_count(std::vector<int32_t>{shape.num_pages}),
        page_owners(std::vector<uint64_t>(Pages(shape), 0)),
        sole_pages(std::vector<int32_t>(static_cast<size_t>(shape.max_slots), 0)),
        page_table(Lists(shape) * static_cast<size_t>(shape.max_pages)),
        first_live(std::vector<int32_t>(Lists(shape), 0)),
        pool_fault(std::vector<PoolFault>{PoolFault::kNone}),
        length(std::vector<int64_t>(static_cast<size_t>(shape.max_slots), 0)),
        max_log_evicted_mass(std::vector<double>(Lists(shape), kNothing)),
        cum_log_f(std::vector<double>(Heads(shape), 0)),
        log_mass(std::vector<double>(Heads(shape), kNothing)),
        decay_sum(std::vector<double>(Heads(shape), 0)),
        key_sum(std::vector<double>(Heads(shape) * static_cast<size_t>(shape.head_dim), 0)),
        last_k(Lists(shape) * static_cast<size_t>(shape.head_dim)),
        last_v(last_k.size()),
        page_end_k(last_k.size()),
        page_end_v(last_k.size()) {
    view.shape = shape;
    view.keys = keys.data();
    view.values = values.data();
    view.log_f_offset = log_f_offset.data();
    view.page_cum_log_f = page_cum_log_f.data();
    view.log_mass_bound = log_mass_bound.data();
    view.log_denominator_bound = log_denominator_bound.data();
    view.max_key_norm = max_key_norm.data();
    view.free_stack = free_stack.data();
    view.free_count = free_count.data();
    view.pool_fault = pool_fault.data();
    view.page_owners = page_owners.data();
    view.sole_pages = sole_pages.data();
    view.page_table = page_table.data();
    view.first_live = first_live.data();
    view.length = length.data();
    view.max_log_evicted_mass = max_log_evicted_mass.data();
    view.cum_log_f = cum_log_f.data();
    view.log_mass = log_mass.data();
    view.decay_sum = decay_sum.data();
    view.key_sum = key_sum.data();
    view.last_k = last_k.data();
    view.last_v = last_v.data();
    view.page_end_k = page_end_k.data();
    view.page_end_v = page_end_v.data();
  }

  // Owners of pages and the counts of pages are what the tables say.
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
    EXPECT_EQ(free_count.ToHost()[0], shape.num_pages - used);
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
  DeviceArray<float> log_f_offset;
  DeviceArray<double> page_cum_log_f, log_mass_bound, log_denominator_bound, max_key_norm;
  DeviceArray<int32_t> free_stack, free_count;
  DeviceArray<uint64_t> page_owners;
  DeviceArray<int32_t> sole_pages, page_table, first_live;
  DeviceArray<PoolFault> pool_fault;
  DeviceArray<int64_t> length;
  DeviceArray<double> max_log_evicted_mass, cum_log_f, log_mass, decay_sum, key_sum;
  DeviceArray<float> last_k, last_v, page_end_k, page_end_v;
  PagedKv view;
};

// Room for the plan of steps with up to `rows` rows and `seqs` sequences.
struct DeviceWork {
  DeviceWork(const PagedKvShape& shape, int64_t rows, int seqs)
      : blocks(static_cast<size_t>(MaxRowBlocks(rows, seqs))),
        tiles(blocks.size()),
        num_blocks(1),
        num_tiles(1),
        split_begin(static_cast<size_t>(shape.layers) *
                    static_cast<size_t>(seqs * shape.q_heads + 1)),
        block_starts(static_cast<size_t>(shape.layers * kDecodeBlocks)),
        page_sums(blocks.size() * static_cast<size_t>(shape.q_heads * (shape.head_dim + 4))) {
    view.max_blocks = static_cast<int>(blocks.size());
    view.max_tiles = view.max_blocks;
    view.blocks = blocks.data();
    view.num_blocks = num_blocks.data();
    view.tiles = tiles.data();
    view.num_tiles = num_tiles.data();
    view.split_begin = split_begin.data();
    view.block_starts = block_starts.data();
    view.decode_blocks = kDecodeBlocks;
    view.max_splits = std::numeric_limits<int>::max();
    view.max_seq_heads = seqs * shape.q_heads;
    view.page_sums = page_sums.data();
  }

  static constexpr int kDecodeBlocks = 7;

  DeviceArray<RowBlock> blocks, tiles;
  DeviceArray<int32_t> num_blocks, num_tiles, split_begin;
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

// The same in device memory.
struct DeviceBatch {
  explicit DeviceBatch(const std::vector<BatchEntry>& entries) : DeviceBatch(HostBatch(entries)) {}
  explicit DeviceBatch(const HostBatch& host)
      : slot(host.slot),
        row_begin(host.row_begin),
        position(host.position),
        log_tolerance(host.log_tolerance),
        view(host.view) {
    view.slot = slot.data();
    view.row_begin = row_begin.data();
    view.position = position.data();
    view.log_tolerance = log_tolerance.data();
  }

  DeviceArray<int32_t> slot;
  DeviceArray<int64_t> row_begin, position;
  DeviceArray<double> log_tolerance;
  BatchView view;
};

}  // namespace fox::cuda::testing
