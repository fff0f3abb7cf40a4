// Read-back and audit of the paged KV cache.
#include "engine/run/kv_cache.h"

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

void KvCache::Share(int32_t from, int32_t to) { ops_.Share(from, to, view_, nullptr); }

void KvCache::SwapOut(int32_t slot, const HostSlot& to) { ops_.SwapOut(slot, to, view_, nullptr); }

void KvCache::SwapIn(const HostSlot& from, int32_t slot) {
  ops_.SwapIn(from, slot, view_, nullptr);
}

int64_t KvCache::SolePages(int slot) const { return Read(view_.sole_pages + slot, 1)[0]; }

int64_t KvCache::FreePages() const { return Read(view_.free_count, 1)[0]; }

std::vector<int32_t> KvCache::FirstLive(int slot) const {
  const int64_t lists = view_.shape.lists_per_slot();
  return Read(view_.first_live + slot * lists, lists);
}

absl::Status KvCache::Audit() const {
  const PagedKvShape& shape = view_.shape;
  constexpr uint64_t kFree = ~uint64_t{0};
  std::vector<uint64_t> owners(static_cast<size_t>(shape.num_pages), 0);
  std::vector<int64_t> places(owners.size());  // list in its slot, then page of the list
  const int64_t free = FreePages();
  if (free < 0 || free > shape.num_pages) {
    return absl::InternalError(absl::StrCat("free count ", free));
  }
  for (int32_t page : Read(view_.free_stack, free)) {
    if (page < 0 || page >= shape.num_pages || owners[static_cast<size_t>(page)] != 0) {
      return absl::InternalError(absl::StrCat("page ", page, " is free twice"));
    }
    owners[static_cast<size_t>(page)] = kFree;
  }
  int64_t live = 0;
  const auto length = Read(view_.length, shape.max_slots);
  for (int slot = 0; slot < shape.max_slots; ++slot) {
    const auto first = FirstLive(slot);
    const int64_t tokens = length[static_cast<size_t>(slot)];
    const int end = PagesFor(tokens);
    for (int64_t i = 0; i < shape.lists_per_slot(); ++i) {
      const int begin = first[static_cast<size_t>(i)];
      if (begin < 0 || begin > end || (end > 0 && begin == end)) {
        return absl::InternalError(
            absl::StrCat("slot ", slot, " list ", i, ": live pages [", begin, ", ", end, ")"));
      }
      const auto table = Read(view_.Table(slot * shape.lists_per_slot() + i) + begin, end - begin);
      for (int p = begin; p < end; ++p) {
        const int32_t page = table[static_cast<size_t>(p - begin)];
        const auto at = static_cast<size_t>(page);
        const int64_t place = i * shape.max_pages + p;
        const bool exists = page >= 0 && page < shape.num_pages;
        const bool full = tokens >= int64_t{p + 1} * kPageTokens;
        const bool shared = exists && owners[at] != 0;
        if (!exists || (shared && (owners[at] == kFree || !full || places[at] != place ||
                                   !ops_.shares_pages()))) {
          return absl::InternalError(absl::StrCat("page ", page, " has two owners"));
        }
        if (!shared) ++live;
        owners[at] += OwnerWord(slot);
        places[at] = place;
      }
    }
  }
  if (free + live != shape.num_pages) {
    return absl::InternalError(
        absl::StrCat(free, " free and ", live, " live of ", shape.num_pages, " pages"));
  }
  std::replace(owners.begin(), owners.end(), kFree, uint64_t{0});
  return ops_.shares_pages() ? AuditOwners(owners) : absl::OkStatus();
}

// `owners`: as the page tables say.
absl::Status KvCache::AuditOwners(const std::vector<uint64_t>& owners) const {
  const auto counted = Read(view_.page_owners, view_.shape.num_pages);
  std::vector<int32_t> sole(static_cast<size_t>(view_.shape.max_slots), 0);
  for (size_t page = 0; page < owners.size(); ++page) {
    if (counted[page] != owners[page]) {
      return absl::InternalError(absl::StrCat("page ", page, " has ", NumOwners(owners[page]),
                                              " owners, not ", NumOwners(counted[page])));
    }
    if (NumOwners(owners[page]) == 1) ++sole[static_cast<size_t>(SoleOwner(owners[page]))];
  }
  for (int slot = 0; slot < view_.shape.max_slots; ++slot) {
    const int64_t pages = SolePages(slot);
    if (pages != sole[static_cast<size_t>(slot)]) {
      return absl::InternalError(absl::StrCat(
          "slot ", slot, " alone has ", sole[static_cast<size_t>(slot)], " pages, not ", pages));
    }
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
         4 * lists * static_cast<size_t>(shape.head_dim) * SizeOf(shape.residual_dtype());
}

}  // namespace fox
