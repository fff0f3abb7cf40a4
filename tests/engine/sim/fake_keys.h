// The fake model, as pure functions of a request and its tokens, which the executor and the
// reference share and nothing else. Each head writes a hash of (request, head, position,
// token), or, where pages are shared, of all tokens so far, and of whether the token came alone;
// logits are a function of a sum over all live keys, each weighted by its page's place, so a stale,
// foreign, missing or swapped page changes tokens. The sum can be kept token by token or made anew
// from pages. Read paged_keys.h next.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "engine/request/step_executor.h"
#include "kernels/paging/paged_kv.h"
#include "tests/engine/sim/random.h"

namespace fox::sim {

struct FakeOptions {
  ExecutorLimits limits;
  // Pages a head keeps at a page end, the page that ends included, sampled per (KeyChain, head,
  // page) from [max(1, min_window), max_window]; a negative max_window: nothing is evicted.
  int min_window = 0;
  int max_window = -1;
  int64_t fail_at_run = -1;  // this plan and all later ones fail,
  bool fail_late = false;    // when they are collected
  // A plan that overdraws the pool fails when it is collected, as a device's does; false: it is a
  // violation.
  bool reports_pool_faults = false;
  int64_t understated_pages = 0;    // up to that many free pages are not reported
  int64_t overstated_pages = 0;     // reported, and not free
  std::set<uint64_t> nan_requests;  // their rows of position >= nan_position hold a NaN
  int64_t nan_position = 0;
  std::map<uint64_t, int64_t> max_lengths;  // tokens that a request may be fed; others: any
  std::map<uint64_t, std::string> salts;    // of requests that have one
};

inline uint64_t TokenHash(uint64_t request, int64_t position, int32_t token) {
  return Mix(request * 0xD1B54A32D192ED03ULL + static_cast<uint64_t>(position),
             static_cast<uint64_t>(token));
}

// The token hashes of a request, in order.
class KeyChain {
 public:
  KeyChain() = default;
  KeyChain(const FakeOptions& options, uint64_t request, const std::string& salt,
           double log_tolerance)
      : state_(request),
        shares_(options.limits.snapshot_slots > 0),
        tells_decodes_(options.limits.chunks.fixed) {
    if (!shares_) return;
    state_ = static_cast<uint64_t>(static_cast<int64_t>(std::max(log_tolerance, -1e9) * 1e6));
    for (const char c : salt) state_ = Mix(state_, static_cast<uint64_t>(c));
  }
  // `decoded`: the token comes alone, which makes it another one where chunks matter.
  uint64_t Next(int64_t position, int32_t token, bool decoded) {
    uint64_t hash = TokenHash(state_, position, token);
    if (tells_decodes_ && decoded) hash = ~hash;
    if (shares_) state_ = hash;
    return hash;
  }
  // The seed of a page end's decision: the request, or all tokens before the page end.
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0;
  bool shares_ = false, tells_decodes_ = false;
};

inline uint64_t KeyOf(uint64_t token_hash, int64_t head) {
  const uint64_t salt = static_cast<uint64_t>(head + 1) * 0x8CB92BA72F3D8DD7ULL;
  const uint64_t key = (token_hash ^ salt) * 0x2545F4914F6CDD1DULL;
  return key ^ (key >> 32);
}

// Odd: no key of the page is without effect.
inline uint64_t PageWeight(int64_t head, int64_t page) {
  return Mix(static_cast<uint64_t>(head), static_cast<uint64_t>(page)) | 1;
}

// The first page that a head keeps after the page end at `end` tokens, by that page end alone;
// pages evicted before stay evicted. `state`: of the KeyChain at that page end.
inline int64_t FirstKept(const FakeOptions& options, uint64_t state, int64_t head, int64_t end,
                         double log_tolerance) {
  if (options.max_window < 0 || !std::isfinite(log_tolerance)) return 0;
  const uint64_t least = static_cast<uint64_t>(std::max(1, options.min_window));
  const uint64_t span = static_cast<uint64_t>(std::max(1, options.max_window)) - least + 1;
  const uint64_t random = Mix(Mix(state, static_cast<uint64_t>(head)), static_cast<uint64_t>(end));
  return end / kPageTokens - static_cast<int64_t>(least + (random >> 32) * span / (1ULL << 32));
}

// H of the page end that keeps the pages from `kept` on. The rule evicts page n if E_n + H <= log
// eps - slack, and E_n is n here: H lies between log eps - n and log eps - n + 1 for the first page
// n that is not licensed. The page end determines the exact value, and so the certificate.
inline double LogDenominatorBound(uint64_t state, int64_t head, int64_t end, int64_t kept,
                                  double log_tolerance) {
  // The page that ends is never evicted, licence or not.
  const int64_t unlicensed = kept + 1 == end / kPageTokens ? kept + 1 : kept;
  const uint64_t random = Mix(Mix(state, static_cast<uint64_t>(end)), static_cast<uint64_t>(head));
  const double above = 0x1p-4 + 0.875 * 0x1p-32 * static_cast<double>(random >> 32);
  return log_tolerance - static_cast<double>(unlicensed) + above;
}

// A row of logits in [0, 2), but for the largest, which is 3.
inline void FillLogits(uint64_t fold, float* row, int32_t vocab) {
  const uint64_t hash = Mix(fold, 7);
  for (int32_t i = 0; i < vocab; ++i) {
    const uint64_t noise = (hash + static_cast<uint64_t>(i)) * 0x9E3779B97F4A7C15ULL;
    row[i] = static_cast<float>(static_cast<int32_t>(noise >> 40)) * 0x1.0p-23f;
  }
  row[static_cast<size_t>((hash >> 32) * static_cast<uint64_t>(vocab) >> 32)] = 3.0f;
}

}  // namespace fox::sim
