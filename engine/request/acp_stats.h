// AcpStats: counters of pruning, for one slot since its last release or for one request over all
// slots that it held.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/paging/acp.h"
#include "kernels/paging/lost_mass.h"

namespace fox {

struct AcpStats {
  int64_t blocks_total = 0;  // (row, head, page) visits in the causal range
  int64_t blocks_pruned = 0;
  int64_t pages_allocated = 0;
  int64_t pages_evicted = 0;
  int64_t pages_found_evicted = 0;  // part of pages_evicted: missing in the cached prefix
  int64_t peak_pages = 0;
  double max_log_evicted_mass = kNoMass;  // certificate, <= log eps
  double log_tolerance = kNoMass;         // log eps of the request; no sum touches it
  // Of the rows of the prompt that the request computed, and of its generated tokens that were fed.
  LostMass prompt_lost, answer_lost;

  // Pages that the slot holds now.
  int64_t live_pages() const { return pages_allocated - pages_evicted; }

  AcpStats& operator+=(const AcpStats& other) {
    blocks_total += other.blocks_total;
    blocks_pruned += other.blocks_pruned;
    pages_allocated += other.pages_allocated;
    pages_evicted += other.pages_evicted;
    pages_found_evicted += other.pages_found_evicted;
    peak_pages = std::max(peak_pages, other.peak_pages);
    max_log_evicted_mass = std::max(max_log_evicted_mass, other.max_log_evicted_mass);
    prompt_lost.Add(other.prompt_lost);
    answer_lost.Add(other.answer_lost);
    return *this;
  }
};

}  // namespace fox
