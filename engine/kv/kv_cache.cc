// Read-back and audit of the paged KV cache.
#include "engine/kv/kv_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fox {

template <typename T>
std::vector<T> KvCache::Read(const T* device, int64_t count) const {
  std::vector<T> host(static_cast<size_t>(count));
  ops_.CopyToHost(device, host.size() * sizeof(T), host.data(), nullptr);
  return host;
}

KvCache::KvCache(const PagedKvShape& shape, Ops& ops, const PoolWords& words)
    : ops_(ops), storage_(shape, ops, words), view_(storage_.view()) {}

void KvCache::Release(const std::vector<int32_t>& slots) {
  ops_.Release(slots.data(), static_cast<int>(slots.size()), view_, nullptr);
}

int64_t KvCache::FreePages() const { return Read(view_.free_count, 1)[0]; }

double KvCache::MaxLogMass(int slot) const {
  const int64_t lists = view_.shape.lists_per_slot();
  const auto mass = Read(view_.max_log_evicted_mass + slot * lists, lists);
  return *std::max_element(mass.begin(), mass.end());
}

std::vector<int32_t> KvCache::FirstLive(int slot) const {
  const int64_t lists = view_.shape.lists_per_slot();
  return Read(view_.first_live + slot * lists, lists);
}

absl::Status KvCache::Audit() const {
  const PagedKvShape& shape = view_.shape;
  std::vector<int> owners(static_cast<size_t>(shape.num_pages), 0);
  const auto own = [&](int32_t page) {
    if (page < 0 || page >= shape.num_pages) return false;
    return ++owners[static_cast<size_t>(page)] == 1;
  };
  const int64_t free = FreePages();
  if (free < 0 || free > shape.num_pages) {
    return absl::InternalError(absl::StrCat("free count ", free));
  }
  for (int32_t page : Read(view_.free_stack, free)) {
    if (!own(page)) return absl::InternalError(absl::StrCat("page ", page, " is free twice"));
  }
  int64_t live = 0;
  const auto length = Read(view_.length, shape.max_slots);
  for (int slot = 0; slot < shape.max_slots; ++slot) {
    const auto first = FirstLive(slot);
    const int end = PagesFor(length[static_cast<size_t>(slot)]);
    for (int64_t i = 0; i < shape.lists_per_slot(); ++i) {
      const int begin = first[static_cast<size_t>(i)];
      if (begin < 0 || begin > end || (end > 0 && begin == end)) {
        return absl::InternalError(
            absl::StrCat("slot ", slot, " list ", i, ": live pages [", begin, ", ", end, ")"));
      }
      live += end - begin;
      const auto table = Read(view_.Table(slot * shape.lists_per_slot() + i) + begin, end - begin);
      for (int32_t page : table) {
        if (!own(page)) return absl::InternalError(absl::StrCat("page ", page, " has two owners"));
      }
    }
  }
  if (free + live != shape.num_pages) {
    return absl::InternalError(
        absl::StrCat(free, " free and ", live, " live of ", shape.num_pages, " pages"));
  }
  return absl::OkStatus();
}

size_t KvCache::FixedBytes(const PagedKvShape& shape) {
  const auto lists =
      static_cast<size_t>(shape.max_slots) * static_cast<size_t>(shape.lists_per_slot());
  const auto heads = static_cast<size_t>(shape.max_slots) * static_cast<size_t>(shape.layers) *
                     static_cast<size_t>(shape.q_heads);
  return lists * (static_cast<size_t>(shape.max_pages) * sizeof(int32_t) + 16) +
         heads * (3 + static_cast<size_t>(shape.head_dim)) * sizeof(double) +
         2 * lists * static_cast<size_t>(shape.head_dim) * SizeOf(shape.residual_dtype());
}

}  // namespace fox
