// The page pool of the CPU backend: pages are allocated, shared and freed only here. See paged_kv.h
// for a page's owners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/e4m3.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// A free page for `slot`.
inline int32_t TakePage(const PagedKv& kv, int slot) {
  FOX_CHECK(*kv.free_count > 0);
  const int32_t page = kv.free_stack[--*kv.free_count];
  FOX_CHECK(kv.page_owners[page] == 0);
  kv.page_owners[page] = OwnerWord(slot);
  ++kv.sole_pages[slot];
  return page;
}

// Makes `slot` another owner of the page.
inline void SharePage(const PagedKv& kv, int slot, int32_t page) {
  uint64_t& owners = kv.page_owners[page];
  FOX_CHECK(NumOwners(owners) > 0);
  if (NumOwners(owners) == 1) --kv.sole_pages[SoleOwner(owners)];
  owners += OwnerWord(slot);
}

// Removes `slot` from the page's owners. A page without owners is free.
inline void DropPage(const PagedKv& kv, int slot, int32_t page) {
  FOX_CHECK(page >= 0 && page < kv.shape.num_pages);
  uint64_t& owners = kv.page_owners[page];
  FOX_CHECK(NumOwners(owners) > 0);
  owners -= OwnerWord(slot);
  if (NumOwners(owners) > 1) return;
  if (NumOwners(owners) == 1) {
    ++kv.sole_pages[SoleOwner(owners)];
    return;
  }
  FOX_CHECK(owners == 0 && *kv.free_count < kv.shape.num_pages);
  --kv.sole_pages[slot];
#ifndef NDEBUG
  // NaN patterns reveal reads of a freed page.
  const auto poison = [page](void* array, int byte, int64_t bytes) {
    if (bytes > 0) std::memset(static_cast<std::byte*>(array) + page * bytes, byte, bytes);
  };
  poison(kv.keys, 0xff, kv.shape.kv_bytes());
  poison(kv.values, 0xff, kv.shape.kv_bytes());
  poison(kv.exponents, kNoExponent, kv.shape.exponent_bytes());
#endif
  kv.free_stack[(*kv.free_count)++] = page;
}

}  // namespace fox
