// SlotImage: a slot as Ops::SaveSlot copies it into one piece of memory, from which Ops::LoadSlot
// restores it bit for bit. The layout contract of both backends:
//   [state: length, first_live, all else that PagedKv has by slot]
//   [live pages: list by list, ascending]
// An image needs no index: the state says how many pages each list has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// A sector of the device's memory, which it transfers whole.
inline constexpr int64_t kImageAlignment = 32;
static_assert(kImageAlignment % 16 == 0);

// The backend's memory for the image of a slot, borrowed for the work of the call.
struct SlotImage {
  std::byte* data = nullptr;  // aligned to 16; kImageAlignment is faster on a GPU
  int64_t most_pages = 0;     // `data` has SlotImageBytes(shape, most_pages) bytes
};

// The layout, in the cache and in the image.
struct SlotImageLayout {
  // One array of the PagedKv, by slot or by page id.
  struct Array {
    std::byte* data;
    int64_t bytes;   // of one slot, or of one page
    int64_t offset;  // in the state, or in a page of the image
  };
  static constexpr int kMaxState = 12, kPageArrays = 7;
  static constexpr int kHeader = 2;  // the first of `state`: length and first_live

  explicit SlotImageLayout(const PagedKv& kv) {
    const PagedKvShape& shape = kv.shape;
    const int64_t lists = shape.lists_per_slot(), heads = shape.heads_per_slot();
    const int64_t wide = static_cast<int64_t>(SizeOf(shape.residual_dtype()));
    constexpr int64_t kDouble = sizeof(double);
    AddState(kv.length, sizeof(int64_t));
    AddState(kv.first_live, lists * static_cast<int64_t>(sizeof(int32_t)));
    AddState(kv.max_log_evicted_mass, lists * kDouble);
    AddState(kv.evicted_log_mass, heads * kDouble);
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
    state_bytes = RoundUp(state_bytes, kImageAlignment);
    page_bytes = RoundUp(page_bytes, kImageAlignment);
  }

  Array state[kMaxState];
  int num_state = 0;
  Array page[kPageArrays];
  int num_page = 0;
  int64_t state_bytes = 0;
  int64_t page_bytes = 0;  // of a page in the image

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

// Bytes of the image of a slot whose lists have this many live pages in all.
inline size_t SlotImageBytes(const PagedKvShape& shape, int64_t pages) {
  PagedKv kv;
  kv.shape = shape;
  const SlotImageLayout layout(kv);
  return static_cast<size_t>(layout.state_bytes + pages * layout.page_bytes);
}

// Bytes at the beginning of an image that PagesInImage reads.
inline int64_t PagesInImageBytes(const PagedKvShape& shape) {
  PagedKv kv;
  kv.shape = shape;
  const SlotImageLayout::Array& first_live = SlotImageLayout(kv).state[1];
  return first_live.offset + first_live.bytes;
}

// The number of live pages in an image that begins with these bytes; -1: no slot with `tokens`
// tokens, which end a page, can have this image.
inline int64_t PagesInImage(const PagedKvShape& shape, const std::byte* image, int64_t tokens) {
  PagedKv kv;
  kv.shape = shape;
  const SlotImageLayout layout(kv);
  int64_t length = 0;
  std::memcpy(&length, image + layout.state[0].offset, sizeof(length));
  if (length != tokens || length % kPageTokens != 0) return -1;
  int64_t pages = 0;
  for (int64_t list = 0; list < shape.lists_per_slot(); ++list) {
    int32_t first = 0;
    std::memcpy(&first, image + layout.state[1].offset + list * 4, sizeof(first));
    if (first < 0 || first >= PagesFor(length)) return -1;
    pages += PagesFor(length) - first;
  }
  return pages;
}

}  // namespace fox
