// PagedKv: the KV cache as one plain struct of pointers, paged per head. The layout contract of all
// backends. It owns nothing; PagedKvStorage allocates it, the Ops read and write it.
//
// A page holds 64 keys and values of ONE kv head of ONE layer, at absolute positions 64p .. 64p+63.
// A page list belongs to (slot, layer, kv head); its live pages are the range
// [first_live, ceil(length / 64)). A slot holds one running sequence, or a snapshot, to which
// nothing is appended. Slots share full pages (Ops::Share), each in the same list and place; a full
// page is never written. A page is free, or owned by every slot in which it is live. A slot can be
// saved as an image and restored from it (slot_image.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace fox {

inline constexpr int kPageTokens = 64;

// Faults that a backend can find in its page pool. None happens while the scheduler keeps its
// promises; after one, the step's results are invalid.
enum class PoolFault : int32_t {
  kNone,
  kOverdrawn,         // a step took more pages than were free
  kOverfilled,        // more pages came back than exist, or an invalid page id
  kTableEnd,          // a sequence grew past max_pages
  kWrittenWhileFree,  // a free page was written to (poison_free_pages)
  kImageOverflow,     // a slot had more pages than the memory for its image has room for
  kSplitOverflow      // decode attention has more splits than its workspace has room for
};

constexpr const char* Describe(PoolFault fault) {
  switch (fault) {
    case PoolFault::kNone:
      return "no fault";
    case PoolFault::kOverdrawn:
      return "a step took more pages than were free";
    case PoolFault::kOverfilled:
      return "more pages came back than there are";
    case PoolFault::kTableEnd:
      return "a sequence grew past its page table";
    case PoolFault::kWrittenWhileFree:
      return "a free page was written to";
    case PoolFault::kImageOverflow:
      return "a slot had more pages than its image has room for";
    case PoolFault::kSplitOverflow:
      return "decode attention had more splits than its workspace has room for";
  }
  return "unknown fault";
}

struct PagedKvShape {
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Type of keys and values in pages. kE4M3: each token's key and value are rounded once to 8 bits
  // (EncodeE4M3).
  DType dtype = DType::kF32;
  int num_pages = 0;  // in the pool, shared by all lists
  int max_slots = 0;
  int max_pages = 0;  // per list: ceil(longest sequence / 64)
  bool k_shift = false;
  bool v_shift = false;
  // c and the raw last rows are kept as of this number of last tokens, a power of two: at least two
  // more than a step has drafts of a sequence (batch_view.h).
  int history = 1;
  // For debugging: keys and values of free pages are NaN, and every step checks that they still
  // are. CUDA; the CPU backend fills pages that are freed, in debug builds.
  bool poison_free_pages = false;

  FOX_HOST_DEVICE int group() const { return q_heads / kv_heads; }
  FOX_HOST_DEVICE int64_t lists_per_slot() const { return static_cast<int64_t>(layers) * kv_heads; }
  FOX_HOST_DEVICE int64_t heads_per_slot() const { return static_cast<int64_t>(layers) * q_heads; }
  // Bytes of a page's keys, and of its values; bytes of all their exponents.
  int64_t kv_bytes() const {
    return static_cast<int64_t>(kPageTokens * head_dim) * static_cast<int64_t>(SizeOf(dtype));
  }
  int64_t exponent_bytes() const { return dtype == DType::kE4M3 ? 2 * kPageTokens : 0; }
  int64_t kv_size() const { return static_cast<int64_t>(kv_heads) * head_dim; }
  DType residual_dtype() const { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  // Memory of one page: keys, values and their summaries.
  size_t page_bytes() const {
    const auto kv = static_cast<size_t>(2 * kv_bytes() + exponent_bytes());
    const size_t gates = static_cast<size_t>(kPageTokens) * SizeOf(residual_dtype());
    return kv + static_cast<size_t>(group()) * (gates + 3 * sizeof(double));
  }
};

// All index spaces are row-major in the order written. "group" counts the query heads of a kv head;
// page and list quantities that depend on the gates exist once per query head.
struct PagedKv {
  PagedKvShape shape;

  // Pool, by page id.
  void* keys = nullptr;         // [num_pages, 64, head_dim]; the CPU backend stores [head_dim, 64]
  void* values = nullptr;       // [num_pages, 64, head_dim]
  int8_t* exponents = nullptr;  // [num_pages, 2, 64], kE4M3: of each key, then of each value
  void* log_f_offset =
      nullptr;  // [num_pages, group, 64] residual dtype: c_j - page_cum_log_f, rounded once
  double* page_cum_log_f = nullptr;  // [num_pages, group]: c just before the page's first key
  // Written when the page is full (acp.md section 3; defined in kernels/paging/acp.h):
  double* log_mass_bound = nullptr;  // [num_pages, group]: E, the bound on the mass up to this page
  double* log_denominator_bound =
      nullptr;  // [num_pages, group]: H, the bound on every later denominator

  // Free pages: a stack of page ids; [0, *free_count) are free.
  int32_t* free_stack = nullptr;  // [num_pages]
  int32_t* free_count = nullptr;  // [1]
  // Owners, where the backend shares pages.
  uint64_t* page_owners = nullptr;  // [num_pages]: the sum of OwnerWord over the slots that have it
  int32_t* sole_pages = nullptr;    // [max_slots]: pages with no other owner; Release frees them
  // [1] The first fault that the backend found; stays. The CPU backend ends the process instead.
  PoolFault* pool_fault = nullptr;

  // Lists, by (slot, layer, kv head).
  int32_t* page_table = nullptr;  // [max_slots, layers, kv_heads, max_pages] page ids
  int32_t* first_live = nullptr;  // [max_slots, layers, kv_heads]
  int64_t* length = nullptr;      // [max_slots] tokens appended, but for drafts; in all layers
  double* max_log_evicted_mass =
      nullptr;  // [max_slots, layers, kv_heads] certificate: largest evicted-mass bound
  // [max_slots, layers, q_heads] The log of a bound on the mass of all evicted pages, relative to
  // c: E of the last of them, under `paper` plus U; -infinity: none.
  double* evicted_log_mass = nullptr;

  // Running state, by (slot, layer, query head); accumulated at page ends, except c.
  double* cum_log_f = nullptr;  // cumulative log gate of the last token; by After
  double* log_mass = nullptr;   // log M
  double* decay_sum = nullptr;  // S
  double* key_sum = nullptr;    // N: [max_slots, layers, q_heads, head_dim]

  // Token shift: the raw last rows, by After, and the raw rows at the last page end, by (slot,
  // layer); residual dtype. [max_slots, layers, kv_heads * head_dim]
  void* last_k = nullptr;
  void* last_v = nullptr;
  void* page_end_k = nullptr;
  void* page_end_v = nullptr;

  FOX_HOST_DEVICE int64_t ListIndex(int slot, int layer, int kv_head) const {
    return (static_cast<int64_t>(slot) * shape.layers + layer) * shape.kv_heads + kv_head;
  }
  // Takes the place of `slot` in an index into arrays with a history (cum_log_f, last_k, last_v):
  // the entry after `tokens` tokens, of [max_slots * history].
  FOX_HOST_DEVICE int After(int slot, int64_t tokens) const {
    return slot * shape.history + static_cast<int>(tokens & (shape.history - 1));
  }
  FOX_HOST_DEVICE int64_t HeadIndex(int slot, int layer, int q_head) const {
    return (static_cast<int64_t>(slot) * shape.layers + layer) * shape.q_heads + q_head;
  }
  FOX_HOST_DEVICE int32_t* Table(int64_t list) const { return page_table + list * shape.max_pages; }
  // Into page_cum_log_f and the other arrays with an element for each query head of a page. Callers
  // that know the group compute the index themselves and save a division.
  FOX_HOST_DEVICE int64_t SummaryIndex(int32_t page, int head_in_group) const {
    return static_cast<int64_t>(page) * shape.group() + head_in_group;
  }
  // The offsets of a page's log gates for a query head: [64].
  template <typename T>
  FOX_HOST_DEVICE T* LogFOffsets(int64_t summary) const {
    return static_cast<T*>(log_f_offset) + summary * kPageTokens;
  }
  // The exponents of a token's key and value; for pages of kE4M3 only.
  FOX_HOST_DEVICE int8_t* KeyExponent(int32_t page, int token) const {
    return exponents + static_cast<int64_t>(page) * 2 * kPageTokens + token;
  }
  FOX_HOST_DEVICE int8_t* ValueExponent(int32_t page, int token) const {
    return KeyExponent(page, kPageTokens + token);
  }
};

// A page's owners as one word that one addition changes: their number and the sum of their slots,
// which identifies the last owner.
FOX_HOST_DEVICE constexpr uint64_t OwnerWord(int slot) {
  return (uint64_t{1} << 32) | static_cast<uint32_t>(slot);
}
FOX_HOST_DEVICE constexpr int NumOwners(uint64_t owners) { return static_cast<int>(owners >> 32); }
FOX_HOST_DEVICE constexpr int SoleOwner(uint64_t owners) {
  return static_cast<int>(owners & 0xffffffffU);
}

FOX_HOST_DEVICE constexpr int PagesFor(int64_t tokens) {
  return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens);
}

}  // namespace fox
