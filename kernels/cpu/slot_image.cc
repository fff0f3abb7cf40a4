// SaveSlot and LoadSlot: a slot's state and live pages into an image and back, into any empty slot.
// slot_image.h has the layout.
#include "kernels/paging/slot_image.h"

#include <cstring>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_pool.h"

namespace fox {
namespace {

// [lists_per_slot + 1]: live pages of the slot's lists before this one.
std::vector<int64_t> PagesBefore(const PagedKv& kv, int slot) {
  std::vector<int64_t> before{0};
  const int64_t first_list = kv.ListIndex(slot, 0, 0);
  for (int64_t i = 0; i < kv.shape.lists_per_slot(); ++i) {
    const int live = PagesFor(kv.length[slot]) - kv.first_live[first_list + i];
    FOX_CHECK(live >= 0);
    before.push_back(before.back() + live);
  }
  return before;
}

// copy(in the cache, in the image, bytes) for the slot's state.
template <typename Copy>
void CopyState(const SlotImageLayout& layout, int slot, std::byte* range, const Copy& copy) {
  for (int i = 0; i < layout.num_state; ++i) {
    const SlotImageLayout::Array& array = layout.state[i];
    copy(array.data + slot * array.bytes, range + array.offset, static_cast<size_t>(array.bytes));
  }
}

// copy(in the cache, in the image, bytes) for the slot's live pages.
template <typename Copy>
void CopyPages(const SlotImageLayout& layout, const PagedKv& kv, int slot,
               const std::vector<int64_t>& before, std::byte* range, ThreadPool& pool,
               const Copy& copy) {
  const bool parallel = before.back() * layout.page_bytes > kParallelElements;
  pool.ForEach(kv.shape.lists_per_slot(), parallel, [&](int64_t i) {
    const int64_t list = kv.ListIndex(slot, 0, 0) + i;
    std::byte* out =
        range + layout.state_bytes + before[static_cast<size_t>(i)] * layout.page_bytes;
    for (int p = kv.first_live[list]; p < PagesFor(kv.length[slot]); ++p) {
      const int64_t page = kv.Table(list)[p];
      for (const SlotImageLayout::Array& array : layout.page) {
        copy(array.data + page * array.bytes, out + array.offset, static_cast<size_t>(array.bytes));
      }
      out += layout.page_bytes;
    }
  });
}

}  // namespace

void CpuOps::SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, Stream) {
  const SlotImageLayout layout(kv);
  const std::vector<int64_t> before = PagesBefore(kv, slot);
  FOX_CHECK(before.back() <= to.most_pages);
  const auto copy = [](const std::byte* cache, std::byte* range, size_t bytes) {
    std::memcpy(range, cache, bytes);
  };
  CopyState(layout, slot, to.data, copy);
  CopyPages(layout, kv, slot, before, to.data, pool_, copy);
}

void CpuOps::LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, Stream) {
  const SlotImageLayout layout(kv);
  FOX_CHECK(kv.length[slot] == 0);
  const auto copy = [](std::byte* cache, const std::byte* range, size_t bytes) {
    std::memcpy(cache, range, bytes);
  };
  CopyState(layout, slot, from.data, copy);
  const std::vector<int64_t> before = PagesBefore(kv, slot);
  FOX_CHECK(before.back() <= from.most_pages);
  const int end = PagesFor(kv.length[slot]);
  FOX_CHECK(end <= kv.shape.max_pages);
  for (int64_t i = 0; i < kv.shape.lists_per_slot(); ++i) {
    const int64_t list = kv.ListIndex(slot, 0, 0) + i;
    for (int p = kv.first_live[list]; p < end; ++p) kv.Table(list)[p] = TakePage(kv, slot);
  }
  CopyPages(layout, kv, slot, before, from.data, pool_, copy);
  if (audit_ != nullptr) audit_->Forget(slot, kv);
}

}  // namespace fox
