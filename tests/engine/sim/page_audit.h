// PageAudit: reads a page pool back from any backend and audits it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/interface/ops.h"

namespace fox {

template <typename T>
std::vector<T> ReadBack(Ops& ops, const T* device, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  ops.CopyToHost(device, host.size() * sizeof(T), host.data(), nullptr);
  return host;
}

inline int64_t FreePages(const PagedKv& kv, Ops& ops) { return ReadBack(ops, kv.free_count, 1)[0]; }

// First live page of each list of the slot: [layers * kv_heads].
inline std::vector<int32_t> FirstLive(const PagedKv& kv, Ops& ops, int slot) {
  const int64_t lists = kv.shape.lists_per_slot();
  return ReadBack(ops, kv.first_live + slot * lists, lists);
}

// OK if owners, as taken from the page tables, and sole pages are counted right.
inline absl::Status AuditOwners(const PagedKv& kv, Ops& ops, const std::vector<uint64_t>& owners) {
  const auto counted = ReadBack(ops, kv.page_owners, kv.shape.num_pages);
  std::vector<int32_t> sole(static_cast<size_t>(kv.shape.max_slots), 0);
  for (size_t page = 0; page < owners.size(); ++page) {
    if (counted[page] != owners[page]) {
      return absl::InternalError(absl::StrCat("page ", page, " has ", NumOwners(owners[page]),
                                              " owners, not ", NumOwners(counted[page])));
    }
    if (NumOwners(owners[page]) == 1) ++sole[static_cast<size_t>(SoleOwner(owners[page]))];
  }
  for (int slot = 0; slot < kv.shape.max_slots; ++slot) {
    const int64_t pages = ReadBack(ops, kv.sole_pages + slot, 1)[0];
    if (pages != sole[static_cast<size_t>(slot)]) {
      return absl::InternalError(absl::StrCat(
          "slot ", slot, " alone has ", sole[static_cast<size_t>(slot)], " pages, not ", pages));
    }
  }
  return absl::OkStatus();
}

// Internal unless every page is either free or live in a list, slots share a page only if it is
// full and in the same place for all, live ranges are sane, and owners and sole pages are counted
// right. Costs O(live pages).
inline absl::Status AuditPages(const PagedKv& kv, Ops& ops) {
  const PagedKvShape& shape = kv.shape;
  constexpr uint64_t kFree = ~uint64_t{0};
  std::vector<uint64_t> owners(static_cast<size_t>(shape.num_pages), 0);
  std::vector<int64_t> places(owners.size());  // list in its slot, then page of the list
  const int64_t free = FreePages(kv, ops);
  if (free < 0 || free > shape.num_pages) {
    return absl::InternalError(absl::StrCat("free count ", free));
  }
  for (int32_t page : ReadBack(ops, kv.free_stack, free)) {
    if (page < 0 || page >= shape.num_pages || owners[static_cast<size_t>(page)] != 0) {
      return absl::InternalError(absl::StrCat("page ", page, " is free twice"));
    }
    owners[static_cast<size_t>(page)] = kFree;
  }
  int64_t live = 0;
  const auto length = ReadBack(ops, kv.length, shape.max_slots);
  for (int slot = 0; slot < shape.max_slots; ++slot) {
    const auto first = FirstLive(kv, ops, slot);
    const int64_t tokens = length[static_cast<size_t>(slot)];
    const int end = PagesFor(tokens);
    for (int64_t i = 0; i < shape.lists_per_slot(); ++i) {
      const int begin = first[static_cast<size_t>(i)];
      if (begin < 0 || begin > end || (end > 0 && begin == end)) {
        return absl::InternalError(
            absl::StrCat("slot ", slot, " list ", i, ": live pages [", begin, ", ", end, ")"));
      }
      const auto table =
          ReadBack(ops, kv.Table(slot * shape.lists_per_slot() + i) + begin, end - begin);
      for (int p = begin; p < end; ++p) {
        const int32_t page = table[static_cast<size_t>(p - begin)];
        const auto at = static_cast<size_t>(page);
        const int64_t place = i * shape.max_pages + p;
        const bool exists = page >= 0 && page < shape.num_pages;
        const bool full = tokens >= int64_t{p + 1} * kPageTokens;
        const bool shared = exists && owners[at] != 0;
        if (!exists || (shared && (owners[at] == kFree || !full || places[at] != place))) {
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
  return AuditOwners(kv, ops, owners);
}

}  // namespace fox
