// DeviceKv, DeviceWork and DeviceBatch: a paged cache, a step's plan and a batch in device memory
// for tests of the kernels that fill them. Poisoned wherever a fresh server has not written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/batch_view.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {

// Arrays as bytes, by name.
using Contents = std::map<std::string, std::vector<uint8_t>>;

// Names the first byte of each array that differs.
inline std::string Difference(const Contents& got, const Contents& expected) {
  std::string text;
  for (const auto& [name, bytes] : expected) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != bytes.size()) {
      text += name + ": another size; ";
      continue;
    }
    const auto at = std::mismatch(bytes.begin(), bytes.end(), found->second.begin());
    if (at.first == bytes.end()) continue;
    text += name + ": byte " + std::to_string(at.first - bytes.begin()) + " of " +
            std::to_string(bytes.size()) + " is " + std::to_string(*at.second) + ", not " +
            std::to_string(*at.first) + "; ";
  }
  return text;
}

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

// All pages free, all slots empty; bf16 pages.
struct DeviceKv {
  explicit DeviceKv(const PagedKvShape& shape) {
    const size_t dim = static_cast<size_t>(shape.head_dim), summaries = Pages(shape) * Group(shape);
    const auto slots = static_cast<size_t>(shape.max_slots);
    const std::vector<double> zeros(Heads(shape), 0), nothing(Heads(shape), kNothing);
    view.shape = shape;
    view.keys = Set(keys, Pages(shape) * kPageTokens * dim);
    view.values = Set(values, keys.size());
    view.log_f_offset = Set(log_f_offset, summaries * kPageTokens);
    view.page_cum_log_f = Set(page_cum_log_f, summaries);
    view.log_mass_bound = Set(log_mass_bound, summaries);
    view.log_denominator_bound = Set(log_denominator_bound, summaries);
    view.max_key_norm = Set(max_key_norm, summaries);
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
  // f(array) for all contents of pages and states, but what says which page is whose.
  template <typename F>
  void ForEachContent(const F& f) {
    for (auto* array : {&page_cum_log_f, &log_mass_bound, &log_denominator_bound, &max_key_norm,
                        &max_log_evicted_mass, &cum_log_f, &log_mass, &decay_sum, &key_sum}) {
      f(*array);
    }
    for (auto* array : {&log_f_offset, &last_k, &last_v, &page_end_k, &page_end_v}) f(*array);
    for (auto* array : {&keys, &values}) f(*array);
  }

  // All that a sequence in the slot would read of its past.
  Contents ContentsOf(int slot) const {
    const PagedKvShape& shape = view.shape;
    const int64_t lists = shape.lists_per_slot(), group = shape.group(), d = shape.head_dim;
    const int64_t tokens = length.ToHost()[static_cast<size_t>(slot)];
    Contents contents;
    // Of the array's elements [at, at + count).
    const auto adder = [&](const std::string& name, const auto& array) {
      return [&out = contents[name], host = array.ToHost()](int64_t at, int64_t count) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(host.data() + at);
        out.insert(out.end(), bytes, bytes + static_cast<size_t>(count) * sizeof(host[0]));
      };
    };
    const auto add_lists = [&](const std::string& name, const auto& array, int64_t of_list) {
      adder(name, array)(slot * lists * of_list, lists * of_list);
    };
    adder("length", length)(slot, 1);
    add_lists("first_live", first_live, 1);
    add_lists("max_log_evicted_mass", max_log_evicted_mass, 1);
    add_lists("cum_log_f", cum_log_f, group);
    add_lists("log_mass", log_mass, group);
    add_lists("decay_sum", decay_sum, group);
    add_lists("key_sum", key_sum, group * d);
    if (shape.k_shift) add_lists("last_k", last_k, d);
    if (shape.v_shift) add_lists("last_v", last_v, d);
    if (shape.k_shift) add_lists("page_end_k", page_end_k, d);
    if (shape.v_shift) add_lists("page_end_v", page_end_v, d);
    const auto add_keys = adder("keys", keys), add_values = adder("values", values);
    const auto add_offsets = adder("log_f_offset", log_f_offset);
    const auto add_base = adder("page_cum_log_f", page_cum_log_f);
    const auto add_mass = adder("log_mass_bound", log_mass_bound);
    const auto add_denominator = adder("log_denominator_bound", log_denominator_bound);
    const auto add_norm = adder("max_key_norm", max_key_norm);
    const std::vector<int32_t> first = first_live.ToHost(), table = page_table.ToHost();
    for (int64_t list = slot * lists; list < (slot + 1) * lists; ++list) {
      for (int p = first[static_cast<size_t>(list)]; p < PagesFor(tokens); ++p) {
        const int64_t page = table[static_cast<size_t>(list * shape.max_pages + p)];
        const int64_t count = std::min<int64_t>(kPageTokens, tokens - int64_t{p} * kPageTokens);
        add_keys(page * kPageTokens * d, count * d);
        add_values(page * kPageTokens * d, count * d);
        for (int64_t g = page * group; g < (page + 1) * group; ++g) {
          add_offsets(g * kPageTokens, count);
          add_base(g, 1);
          if (count < kPageTokens) continue;
          add_mass(g, 1);
          add_denominator(g, 1);
          add_norm(g, 1);
        }
      }
    }
    return contents;
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
  DeviceWork(const PagedKvShape& shape, int64_t rows, int seqs) {
    view.max_blocks = view.max_tiles = static_cast<int>(MaxRowBlocks(rows, seqs));
    const auto most = static_cast<size_t>(view.max_blocks),
               layers = static_cast<size_t>(shape.layers);
    view.blocks = Set(blocks, most);
    view.num_blocks = Set(num_blocks, 1);
    view.tiles = Set(tiles, most);
    view.num_tiles = Set(num_tiles, 1);
    view.max_seq_heads = seqs * shape.q_heads;
    view.split_begin = Set(split_begin, layers * static_cast<size_t>(view.max_seq_heads + 1));
    view.block_starts = Set(block_starts, layers * kDecodeBlocks);
    view.decode_blocks = kDecodeBlocks;
    view.max_splits = std::numeric_limits<int>::max();
    view.page_sums =
        Set(page_sums, most * static_cast<size_t>(shape.q_heads * (shape.head_dim + 4)));
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
