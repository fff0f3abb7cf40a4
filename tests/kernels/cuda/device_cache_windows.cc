// What attention may skip of a DeviceCache: the thresholds of its rows, by bounds on all logits or,
// without QK-norm, by the rows' own queries and keys; and what skipped pages weigh in truth.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/acp.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {

double DeviceCache::UpperC(const ListGates& gates, int64_t position) const {
  return UpperCumulativeGate(gates.base[static_cast<size_t>(position / kPageTokens)],
                             static_cast<double>(gates.local[static_cast<size_t>(position)]));
}

// t of a row with cumulative gate `c` (kernels/acp.h); `page`: the last full page before it.
double DeviceCache::Threshold(const ListGates& gates, int q_head, double c, int64_t page) const {
  const auto h = static_cast<size_t>(q_head);
  const double denominator = options_.acp == AcpMode::kCertified
                                 ? gates.log_denominator_bound[static_cast<size_t>(page)]
                                 : std::numeric_limits<double>::infinity();
  return PageThreshold(options_.acp, denominator, c, self_logit_bound_[h], max_logit_bound_[h]);
}

// For pages before that of the first row. A kernel's float32 sums of head_dim products err by at
// most head_dim 2^-24 of |q||k|; what it adds to be safe is twice that, and once for |q|.
double DeviceCache::LargestThreshold(const RowBlock& rows, int q_head, int rounding) const {
  const ListGates& list = gates(rows.seq, q_head);
  const int64_t before = rows.position / kPageTokens - 1;
  if (options_.qk_norm) return Threshold(list, q_head, UpperC(list, rows.position), before);
  const int d = options_.head_dim;
  const double key_norm = list.key_norm[static_cast<size_t>(before)];
  double largest = -std::numeric_limits<double>::infinity();
  for (int r = 0; r < rows.count; ++r) {
    const float* q = Query(rows.first_row + r, q_head);
    const float* key = Key(rows.seq, q_head / group(), rows.position + r);
    const double q_norm = std::sqrt(std::inner_product(q, q + d, q, 0.0));
    const double own_norm = std::sqrt(std::inner_product(key, key + d, key, 0.0));
    const double self = std::inner_product(q, q + d, key, 0.0);
    const double error = rounding * d * 0x1p-22 * q_norm * std::max(key_norm, own_norm);
    const double spread = kProductInflation * q_norm * key_norm - self + error;
    largest = std::max(largest, UpperC(list, rows.position + r) + spread / std::sqrt(d));
  }
  return largest;
}

int DeviceCache::BoundaryOf(const RowBlock& rows, int q_head, int rounding) const {
  const int page = rows.position / kPageTokens;
  const double log_eps = LogEps(rows.seq);
  int left = first_live(rows.seq, q_head / group());
  if (left >= page || !std::isfinite(log_eps)) return left;
  const std::vector<double>& log_mass_bound = gates(rows.seq, q_head).log_mass_bound;
  const double threshold = LargestThreshold(rows, q_head, rounding);
  while (left < page && MayDrop(log_mass_bound[static_cast<size_t>(left)], threshold, log_eps))
    ++left;
  return left;
}

std::vector<int32_t> DeviceCache::Boundaries(int rounding) const {
  std::vector<int32_t> boundaries(static_cast<size_t>(options_.q_heads * schedule_.max_tiles), -1);
  for (int h = 0; h < options_.q_heads; ++h) {
    for (int t = 0; t < num_tiles(); ++t) {
      boundaries[static_cast<size_t>(h * schedule_.max_tiles + t)] =
          BoundaryOf(tiles_[static_cast<size_t>(t)], h, rounding);
    }
  }
  return boundaries;
}

std::vector<int32_t> DeviceCache::Windows(int rounding) const {
  std::vector<int32_t> windows(static_cast<size_t>(num_seqs() * options_.q_heads), -1);
  for (const RowBlock& rows : blocks_) {
    if (!Serves(RowKind::kDecode, rows.seq)) continue;
    for (int h = 0; h < options_.q_heads; ++h) {
      windows[static_cast<size_t>(rows.seq * options_.q_heads + h)] =
          options_.qk_norm ? first_live(rows.seq, h / group()) : BoundaryOf(rows, h, rounding);
    }
  }
  return windows;
}

double DeviceCache::MassBefore(int s, int64_t row_in_seq, int q_head, int left) const {
  const int d = options_.head_dim;
  const ListGates& list = gates(s, q_head);
  const int64_t i = seq(s).length - seq(s).rows + row_in_seq;
  const float* q = Query(row_begin_[static_cast<size_t>(s)] + row_in_seq, q_head);
  double before = -std::numeric_limits<double>::infinity(), all = before;
  for (int64_t j = 0; j <= i; ++j) {
    const double dot = std::inner_product(q, q + d, Key(s, q_head / group(), j), 0.0);
    all = LogAddExp(all, dot / std::sqrt(d) - list.c[static_cast<size_t>(j)]);
    if (j == static_cast<int64_t>(left) * kPageTokens - 1) before = all;
  }
  return std::exp(before - all);
}

}  // namespace fox::cuda::testing
