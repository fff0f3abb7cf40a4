// SlotContents: all that a sequence in a slot of a paged cache would read of its past, of either
// backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/paging/paged_kv.h"

namespace fox::testing {

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

// `copy(to, from, bytes)` reads the cache's memory. Where `keys_by_dimension`, a dimension's values
// of all of a page's keys lie side by side.
template <typename Copy>
Contents SlotContents(const PagedKv& kv, int slot, bool keys_by_dimension, const Copy& copy) {
  const PagedKvShape& shape = kv.shape;
  const int64_t lists = shape.lists_per_slot(), group = shape.group(), d = shape.head_dim;
  const auto element = static_cast<int64_t>(SizeOf(shape.dtype)),
             exponents = shape.exponent_bytes();
  Contents contents;
  const auto add = [&](const char* name, const auto* array, int64_t at, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(*array);
    std::vector<uint8_t>& all = contents[name];
    all.resize(all.size() + bytes);
    copy(all.data() + all.size() - bytes, array + at, bytes);
  };
  const auto add_lists = [&](const char* name, const auto* array, int64_t of_list) {
    add(name, array, slot * lists * of_list, lists * of_list);
  };
  int64_t length = 0;
  std::vector<int32_t> first(static_cast<size_t>(lists)),
      table(static_cast<size_t>(shape.max_pages));
  copy(&length, kv.length + slot, sizeof(length));
  copy(first.data(), kv.first_live + slot * lists, first.size() * sizeof(int32_t));
  add("length", kv.length, slot, 1);
  add_lists("first_live", kv.first_live, 1);
  add_lists("max_log_evicted_mass", kv.max_log_evicted_mass, 1);
  add_lists("evicted_log_mass", kv.evicted_log_mass, group);
  add_lists("cum_log_f", kv.cum_log_f, group);
  add_lists("log_mass", kv.log_mass, group);
  add_lists("decay_sum", kv.decay_sum, group);
  add_lists("key_sum", kv.key_sum, group * d);
  // Unset until there is a token, and a page's end.
  const auto add_rows = [&](const char* name, const void* rows, bool set) {
    if (set) add_lists(name, static_cast<const float*>(rows), d);
  };
  add_rows("last_k", kv.last_k, shape.k_shift && length > 0);
  add_rows("last_v", kv.last_v, shape.v_shift && length > 0);
  add_rows("page_end_k", kv.page_end_k, shape.k_shift && length >= kPageTokens);
  add_rows("page_end_v", kv.page_end_v, shape.v_shift && length >= kPageTokens);
  const int64_t runs = keys_by_dimension ? d : 1, page_bytes = kPageTokens * d * element;
  for (int64_t i = 0; i < lists; ++i) {
    copy(table.data(), kv.Table(slot * lists + i), table.size() * sizeof(int32_t));
    for (int p = first[static_cast<size_t>(i)]; p < PagesFor(length); ++p) {
      // After its last token a page holds old contents.
      const int64_t page = table[static_cast<size_t>(p)],
                    tokens = std::min<int64_t>(kPageTokens, length - int64_t{p} * kPageTokens);
      for (int64_t run = 0; run < runs; ++run) {
        add("keys", static_cast<const uint8_t*>(kv.keys),
            page * page_bytes + run * page_bytes / runs, tokens * d * element / runs);
      }
      add("values", static_cast<const uint8_t*>(kv.values), page * page_bytes,
          tokens * d * element);
      for (int64_t of : {page * exponents, page * exponents + kPageTokens}) {
        if (exponents > 0) add("exponents", kv.exponents, of, tokens);
      }
      for (int64_t g = page * group; g < (page + 1) * group; ++g) {
        add("log_f_offset", static_cast<const float*>(kv.log_f_offset), g * kPageTokens, tokens);
        add("page_cum_log_f", kv.page_cum_log_f, g, 1);
        if (tokens < kPageTokens) continue;
        add("log_mass_bound", kv.log_mass_bound, g, 1);
        add("log_denominator_bound", kv.log_denominator_bound, g, 1);
      }
    }
  }
  return contents;
}

}  // namespace fox::testing
