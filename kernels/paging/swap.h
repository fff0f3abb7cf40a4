// A slot saved by Ops::SwapOut: one range of host memory, from which SwapIn restores a slot bit for
// bit. The layout contract of both backends:
//   [state: length, first_live, all else that PagedKv has by slot]
//   [live pages: list by list, ascending]
// The range needs no index: the state says how many pages each list has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// A cache line of the device: aligned ranges cross the bus in whole lines.
inline constexpr int64_t kSwapAlignment = 128;
static_assert(kSwapAlignment % 16 == 0);

// Host memory for a slot. The backend borrows it until the slot is swapped in or dropped.
struct HostSlot {
  std::byte* data = nullptr;  // aligned to 16; kSwapAlignment is faster on a GPU
  int64_t most_pages = 0;     // `data` has SwapBytes(shape, most_pages) bytes
};

// The layout, in the cache and in the range.
struct SwapLayout {
  // One array of the PagedKv, by slot or by page id.
  struct Array {
    std::byte* data;
    int64_t bytes;   // of one slot, or of one page
    int64_t offset;  // in the state, or in a page of the range
  };
  static constexpr int kMaxState = 11, kPageArrays = 7;
  static constexpr int kHeader = 2;  // the first of `state`: length and first_live

  explicit SwapLayout(const PagedKv& kv) {
    const PagedKvShape& shape = kv.shape;
    const int64_t lists = shape.lists_per_slot(), heads = shape.heads_per_slot();
    const int64_t wide = static_cast<int64_t>(SizeOf(shape.residual_dtype()));
    constexpr int64_t kDouble = sizeof(double);
    AddState(kv.length, sizeof(int64_t));
    AddState(kv.first_live, lists * static_cast<int64_t>(sizeof(int32_t)));
    AddState(kv.max_log_evicted_mass, lists * kDouble);
    AddState(kv.cum_log_f, heads * kDouble * shape.history);
    AddState(kv.log_mass, heads * kDouble);
    AddState(kv.decay_sum, heads * kDouble);
    AddState(kv.key_sum, heads * shape.head_dim * kDouble);
    const int64_t rows = lists * shape.head_dim * wide;
    AddState(kv.last_k, shape.k_shift ? rows * shape.history : 0);
    AddState(kv.last_v, shape.v_shift ? rows * shape.history : 0);
    AddState(kv.page_end_k, shape.k_shift ? rows : 0);
    AddState(kv.page_end_v, shape.v_shift ? rows : 0);
    const int64_t summary = shape.group() * kDouble;
    AddPage(kv.keys, shape.kv_bytes());
    AddPage(kv.values, shape.kv_bytes());
    AddPage(kv.exponents, shape.exponent_bytes());
    AddPage(kv.log_f_offset, shape.group() * kPageTokens * wide);
    AddPage(kv.page_cum_log_f, summary);
    AddPage(kv.log_mass_bound, summary);
    AddPage(kv.log_denominator_bound, summary);
    FOX_CHECK(num_state > kHeader && num_page == kPageArrays);
    state_bytes = RoundUp(state_bytes, kSwapAlignment);
    page_bytes = RoundUp(page_bytes, kSwapAlignment);
  }

  Array state[kMaxState];
  int num_state = 0;
  Array page[kPageArrays];
  int num_page = 0;
  int64_t state_bytes = 0;
  int64_t page_bytes = 0;  // of a page in the range

 private:
  static constexpr int64_t RoundUp(int64_t bytes, int64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  void AddState(void* data, int64_t bytes) {
    if (bytes == 0) return;
    FOX_CHECK(num_state < kMaxState);
    state[num_state++] = {static_cast<std::byte*>(data), bytes, state_bytes};
    state_bytes = RoundUp(state_bytes + bytes, 16);
  }
  void AddPage(void* data, int64_t bytes) {
    FOX_CHECK(num_page < kPageArrays);
    page[num_page++] = {static_cast<std::byte*>(data), bytes, page_bytes};
    page_bytes += bytes;
  }
};

// Bytes of a slot whose lists have this many live pages in all.
inline size_t SwapBytes(const PagedKvShape& shape, int64_t pages) {
  PagedKv kv;
  kv.shape = shape;
  const SwapLayout layout(kv);
  return static_cast<size_t>(layout.state_bytes + pages * layout.page_bytes);
}

}  // namespace fox
