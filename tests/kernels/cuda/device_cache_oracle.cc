// The oracle of DeviceCache: the pages that attention may skip; attention in float64 straight from
// its definition, with the error that a correct kernel may make; and the comparison of a kernel's
// outputs with it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSampledProducts = 3e8;  // by the oracle in one check

bool IsPoison(float x) { return std::bit_cast<uint32_t>(x) == 0xffffffffu; }

double Dot(const float* a, const float* b, int count) {
  return std::inner_product(a, a + count, b, 0.0);
}

double Norm(const float* a, int count) { return std::sqrt(Dot(a, a, count)); }

}  // namespace

const float* DeviceCache::Key(int s, int kv_head, int64_t position) const {
  return keys_[static_cast<size_t>(s * options_.kv_heads + kv_head)].data() +
         position * options_.head_dim;
}

const float* DeviceCache::Value(int s, int kv_head, int64_t position) const {
  return values_[static_cast<size_t>(s * options_.kv_heads + kv_head)].data() +
         position * options_.head_dim;
}

const float* DeviceCache::Query(int64_t row, int q_head) const {
  return queries_.data() + (row * options_.q_heads + q_head) * options_.head_dim;
}

double DeviceCache::UpperC(const ListGates& gates, int64_t position) const {
  return UpperCumulativeGate(gates.base[static_cast<size_t>(position / kPageTokens)],
                             static_cast<double>(gates.local[static_cast<size_t>(position)]));
}

// t of a row with cumulative gate `c` (kernels/paging/acp.h); `page`: the last full page before it.
double DeviceCache::Threshold(const ListGates& gates, int q_head, double c, int64_t page) const {
  const auto h = static_cast<size_t>(q_head);
  const double denominator = options_.acp == AcpMode::kCertified
                                 ? gates.log_denominator_bound[static_cast<size_t>(page)]
                                 : kInfinity;
  return PageThreshold(options_.acp, denominator, c, constants_.self_logit_bound[h],
                       constants_.max_logit_bound[h]);
}

int DeviceCache::BoundaryOf(const RowBlock& rows, int q_head) const {
  const int page = rows.position / kPageTokens;
  const double log_eps = LogEps(rows.seq);
  int left = first_live(rows.seq, q_head / group());
  if (left >= page || !std::isfinite(log_eps)) return left;
  const ListGates& list = gates(rows.seq, q_head);
  const std::vector<double>& log_mass_bound = list.log_mass_bound;
  const double threshold = Threshold(list, q_head, UpperC(list, rows.position), page - 1);
  while (left < page && MayDrop(log_mass_bound[static_cast<size_t>(left)], threshold, log_eps))
    ++left;
  return left;
}

std::vector<int32_t> DeviceCache::Boundaries() const {
  std::vector<int32_t> boundaries(static_cast<size_t>(options_.q_heads * schedule_.max_tiles), -1);
  for (int h = 0; h < options_.q_heads; ++h) {
    for (int t = 0; t < num_tiles(); ++t) {
      boundaries[static_cast<size_t>(h * schedule_.max_tiles + t)] =
          BoundaryOf(tiles_[static_cast<size_t>(t)], h);
    }
  }
  return boundaries;
}

// To first order an output moves with the others by the norm's factor, whose relative error is half
// of the mean square's; the norm and the sigmoid add some roundings of float32 and of approximate
// functions.
void DeviceCache::TransformExact(int64_t row, int q_head, std::vector<double>* out,
                                 std::vector<double>* error) const {
  constexpr double kRounding = 0x1p-19;
  const size_t d = out->size(), first = static_cast<size_t>(q_head) * d;
  if (options_.output_norm) {
    double square = 0, moved = 0;
    for (size_t m = 0; m < d; ++m) {
      square += (*out)[m] * (*out)[m];
      moved += std::abs((*out)[m]) * (*error)[m];
    }
    const double mean = square / static_cast<double>(d) + kNormEps, scale = 1 / std::sqrt(mean);
    const double relative = moved / static_cast<double>(d) / mean + kRounding;
    for (size_t m = 0; m < d; ++m) {
      const double weight = static_cast<double>(output_norm_[first + m]) * scale;
      (*error)[m] = std::abs(weight) * ((*error)[m] + std::abs((*out)[m]) * relative);
      (*out)[m] *= weight;
    }
  }
  if (!options_.output_gate) return;
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(options_.q_heads) * d + first;
  for (size_t m = 0; m < d; ++m) {
    const auto gate = static_cast<double>(output_gate_[at + m]);
    const double act = (options_.gate_act == Activation::kSilu ? gate : 1) / (1 + std::exp(-gate));
    (*out)[m] *= act;
    (*error)[m] = std::abs(act) * (*error)[m] + kRounding * std::abs((*out)[m]);
  }
}

// The errors that a kernel may make, all to first order and with a factor of two or more to spare:
//
//   weight j, relative:  the logit's dot product, d products of magnitude at most |q||k| in all,
//                        added in float32 with truncation: 2^-19 |q||k| / sqrt(d);
//                        the gates: differences against the tile's first row (`reference`) and
//                        the page's base, each rounded a few times: 2^-21 (|c_ref - c_j| +
//                        |local_j| + 1); exp2: 2^-21
//   the sink, relative:  as a gate
//   sums over j:         float32, an addition and a rescaling for each 16 keys: 2^-21 pages
//   weight j, in out:    bf16 for the product with v: 2^-8, half the spacing between 1 and 2
//   out:                 bf16: 2^-8 of the stored value
//   pruning:             dropped mass of at most eps moves out by 2 eps max|v|, lse by 2 eps
//
// Relative errors e_j of the weights move out by at most sum_j A_j e_j (|v_j| + |out|), and lse
// by sum_j A_j e_j; lse also carries the rounding of its own parts.
double DeviceCache::RelativeErrors(const ListGates& gates, int64_t reference, int64_t j,
                                   double key_logit, int64_t pages) const {
  const auto at = static_cast<size_t>(j);
  const double gate = std::abs(gates.c[static_cast<size_t>(reference)] - gates.c[at]) +
                      std::abs(static_cast<double>(gates.local[at])) + 1;
  return 0x1p-19 * key_logit + 0x1p-21 * (gate + 1 + static_cast<double>(pages));
}

DeviceCache::Exact DeviceCache::Oracle(int s, int64_t row_in_seq, int q_head,
                                       double sum_rounding) const {
  const int d = options_.head_dim, kv_head = q_head / group();
  const ListGates& list = gates(s, q_head);
  const int64_t begin = seq(s).length - seq(s).rows, i = begin + row_in_seq;
  const int64_t reference = std::max(begin, i - i % kTileRows);
  const float* q = Query(row_begin_[static_cast<size_t>(s)] + row_in_seq, q_head);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  std::vector<double> logit(static_cast<size_t>(i + 1)), magnitude(logit.size());
  const double q_norm = Norm(q, d);
  for (int64_t j = 0; j <= i; ++j) {
    const auto at = static_cast<size_t>(j);
    const float* k = Key(s, kv_head, j);
    magnitude[at] = q_norm * Norm(k, d) * scale;
    logit[at] = Dot(q, k, d) * scale + (list.c[static_cast<size_t>(i)] - list.c[at]);
  }
  double top = *std::max_element(logit.begin(), logit.end());
  double sum = 0, error = 0, largest = 0;
  if (options_.sink) {
    const double sink = constants_.sink[static_cast<size_t>(q_head)];
    const double decay = list.c[static_cast<size_t>(i)] - list.c[static_cast<size_t>(reference)];
    top = std::max(top, sink);
    sum = std::exp(sink - top);
    error = sum * 0x1p-21 * (std::abs(sink) + std::abs(decay) + 1);
  }
  const auto dims = static_cast<size_t>(d);
  std::vector<double> out(dims, 0.0), absolute(dims, 0.0), moved(dims, 0.0);
  for (int64_t j = 0; j <= i; ++j) {
    const auto at = static_cast<size_t>(j);
    const double weight = std::exp(logit[at] - top);
    const double relative = RelativeErrors(list, reference, j, magnitude[at], PagesFor(i + 1));
    const float* v = Value(s, kv_head, j);
    sum += weight;
    error += weight * relative;
    for (size_t m = 0; m < dims; ++m) {
      out[m] += weight * v[m];
      absolute[m] += weight * std::abs(v[m]);
      moved[m] += weight * relative * std::abs(v[m]);
      largest = std::max(largest, std::abs(static_cast<double>(v[m])));
    }
  }
  const double eps = std::exp(LogEps(s));
  Exact exact;
  error = error / sum + sum_rounding;
  for (size_t m = 0; m < dims; ++m) {
    const double o = out[m] / sum;
    exact.out.push_back(o);
    exact.tolerance.push_back(moved[m] / sum + error * std::abs(o) + 0x1p-8 * absolute[m] / sum +
                              2 * eps * largest);
  }
  TransformExact(row_begin_[static_cast<size_t>(s)] + row_in_seq, q_head, &exact.out,
                 &exact.tolerance);
  for (size_t m = 0; m < dims; ++m) {
    double& tolerance = exact.tolerance[m];
    tolerance += 0x1p-8 * (std::abs(exact.out[m]) + tolerance) + 1e-30;
  }
  exact.lse = top + std::log(sum);
  const double parts =
      std::abs(exact.lse) + std::abs(list.local[static_cast<size_t>(i)]) +
      std::abs(list.c[static_cast<size_t>(i)] - list.c[static_cast<size_t>(reference)]);
  exact.lse_tolerance = error + 2 * eps + 0x1p-21 * (parts + 1);
  return exact;
}

bool DeviceCache::Serves(RowKind kind, int s) const {
  return seq(s).slot >= 0 && (seq(s).rows == 1) == (kind == RowKind::kDecode);
}

bool DeviceCache::CheckRow(int s, int64_t row_in_seq, int q_head, double sum_rounding,
                           const std::vector<uint16_t>& out, const std::vector<float>& lse) const {
  const Exact exact = Oracle(s, row_in_seq, q_head, sum_rounding);
  const int64_t row = row_begin_[static_cast<size_t>(s)] + row_in_seq, d = options_.head_dim;
  for (int64_t m = 0; m < d; ++m) {
    const auto at = static_cast<size_t>(row * params_.out.row_stride + q_head * d + m);
    const auto n = static_cast<size_t>(m);
    const double got = Widen(out[at]);
    if (std::abs(got - exact.out[n]) <= exact.tolerance[n]) continue;  // false for NaN
    ADD_FAILURE() << "sequence " << s << " row " << row_in_seq << " head " << q_head << " dim " << m
                  << ": " << got << ", not " << exact.out[n] << " +- " << exact.tolerance[n];
    return false;
  }
  if (params_.lse.empty()) return true;
  const double got =
      lse[static_cast<size_t>(row * params_.lse.row_stride) + static_cast<size_t>(q_head)];
  if (std::abs(got - exact.lse) <= exact.lse_tolerance) return true;
  ADD_FAILURE() << "sequence " << s << " row " << row_in_seq << " head " << q_head << ": log sum "
                << got << ", not " << exact.lse << " +- " << exact.lse_tolerance;
  return false;
}

// Rows that are not the kernel's, and the columns after its own.
void DeviceCache::CheckUntouched(RowKind kind, const std::vector<uint16_t>& out,
                                 const std::vector<float>& lse) const {
  std::vector<bool> served(out.size() / static_cast<size_t>(params_.out.row_stride), false);
  for (int s = 0; s < num_seqs(); ++s) {
    for (int64_t r = 0; r < seq(s).rows; ++r) {
      served[static_cast<size_t>(row_begin_[static_cast<size_t>(s)] + r)] = Serves(kind, s);
    }
  }
  for (size_t row = 0; row < served.size(); ++row) {
    const auto stride = static_cast<size_t>(params_.out.row_stride);
    const auto sums = static_cast<size_t>(params_.lse.row_stride);
    for (size_t m = served[row] ? static_cast<size_t>(params_.out.cols) : 0; m < stride; ++m) {
      ASSERT_EQ(out[row * stride + m], kPoisonBits) << "row " << row << " column " << m;
    }
    for (size_t h = served[row] ? static_cast<size_t>(options_.q_heads) : 0; h < sums; ++h) {
      ASSERT_TRUE(IsPoison(lse[row * sums + h])) << "log sum of row " << row;
    }
  }
}

// The most pages that the tile's rows may skip. Each half of a tile may stop by itself.
int64_t DeviceCache::MostSkipped(int t, int q_head, const std::vector<float>& lse) const {
  constexpr int kHalf = kTileRows / 2;
  const int count = tiles_[static_cast<size_t>(t)].count;
  int64_t skipped = 0;
  for (int begin = 0; begin < count; begin += kHalf) {
    const int end = std::min(count, begin + kHalf);
    skipped += static_cast<int64_t>(end - begin) * LastStop(t, q_head, begin, end, lse);
  }
  return skipped;
}

// The first page that some of the tile's rows [begin, end) needs, going by the rows' whole sums:
// under the row certificate (acp.md 2d) a kernel that has seen only a part can stop no earlier.
int DeviceCache::LastStop(int t, int q_head, int begin, int end,
                          const std::vector<float>& lse) const {
  const RowBlock& tile = tiles_[static_cast<size_t>(t)];
  const ListGates& list = gates(tile.seq, q_head);
  const double log_eps = LogEps(tile.seq);
  int left = boundaries_[static_cast<size_t>(q_head * schedule_.max_tiles + t)];
  if (!std::isfinite(log_eps)) return left;
  for (; left < tile.position / kPageTokens; ++left) {
    for (int r = begin; r < end; ++r) {
      const auto at = static_cast<size_t>((tile.first_row + r) * params_.lse.row_stride);
      const double log_z = lse[at + static_cast<size_t>(q_head)];
      const double mass =
          list.log_mass_bound[static_cast<size_t>(left)] + CacheC(list, tile.position + r);
      // Half of the slack pays for the kernel's rounding.
      if (!(mass - log_z <= log_eps - kAcpSlack / 2)) return left;
    }
  }
  return left;
}

void DeviceCache::CheckCounters(RowKind kind) const {
  const std::vector<float> lse = lse_array_.ToHost();
  std::vector<int64_t> total(static_cast<size_t>(num_seqs()), kFirstCount), least = total;
  for (int s = 0; s < num_seqs(); ++s) {
    for (int64_t r = 0; r < seq(s).rows && Serves(kind, s); ++r) {
      total[static_cast<size_t>(s)] +=
          options_.q_heads * ((seq(s).length - seq(s).rows + r) / kPageTokens + 1);
    }
  }
  const bool stops = kind == RowKind::kPrefill && options_.acp == AcpMode::kCertified;
  std::vector<int64_t> most = least;
  for (int s = 0; s < num_seqs() && kind == RowKind::kDecode; ++s) {
    for (int h = 0; h < options_.q_heads && Serves(kind, s); ++h) {
      least[static_cast<size_t>(s)] += first_live(s, h / group());
      most[static_cast<size_t>(s)] += first_live(s, h / group());
    }
  }
  for (int t = 0; t < num_tiles() && kind == RowKind::kPrefill; ++t) {
    const RowBlock& tile = tiles_[static_cast<size_t>(t)];
    for (int h = 0; h < options_.q_heads; ++h) {
      const int left = boundaries_[static_cast<size_t>(h * schedule_.max_tiles + t)];
      const int64_t skipped = static_cast<int64_t>(tile.count) * left;
      least[static_cast<size_t>(tile.seq)] += skipped;
      most[static_cast<size_t>(tile.seq)] += stops ? MostSkipped(t, h, lse) : skipped;
    }
  }
  const std::vector<int64_t> got_total = total_array_.ToHost(), got = skipped_array_.ToHost();
  EXPECT_EQ(got_total, total);
  for (size_t s = 0; s < got.size(); ++s) {
    EXPECT_GE(got[s], least[s]) << "pages skipped, sequence " << s;
    EXPECT_LE(got[s], most[s]) << "pages skipped, sequence " << s;
  }
}

void DeviceCache::CheckOutputs(RowKind kind, double sum_rounding) const {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> out = out_array_.ToHost();
  const std::vector<float> lse = lse_array_.ToHost();
  CheckUntouched(kind, out, lse);
  CheckCounters(kind);
  double products = 0;
  for (int s = 0; s < num_seqs(); ++s) {
    if (!Serves(kind, s)) continue;
    products += static_cast<double>(seq(s).rows * seq(s).length) * options_.q_heads *
                (2.0 * options_.head_dim);
  }
  const auto every = static_cast<uint32_t>(1 + products / kSampledProducts);
  uint32_t state = 12345;
  int failures = 0;
  for (int s = 0; s < num_seqs(); ++s) {
    if (!Serves(kind, s)) continue;
    for (int64_t r = 0; r < seq(s).rows; ++r) {
      for (int h = 0; h < options_.q_heads; ++h) {
        state = state * 1664525u + 1013904223u;
        if ((state >> 8) % every != 0 && r + 1 < seq(s).rows) continue;
        if (!CheckRow(s, r, h, sum_rounding, out, lse) && ++failures == 10) return;
      }
    }
  }
}

}  // namespace fox::cuda::testing
