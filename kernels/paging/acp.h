// Adaptive Computation Pruning: the decisions, as scalar functions in float64, written once and
// compiled for the host and for the device. The promise: the attention weight of everything a row
// does not see is at most eps. Theorem, proof and rounding budget: kernels/docs/acp.md.
//
// Both bounds have one form. A full page n carries a bound E_n on the mass up to it, a row i a
// threshold t_i, and pages 0..n may be dropped for row i (and all later rows) when
//     E_n + t_i <= log eps - kAcpSlack.
//   paper      E_n = log(b+1) - c_b                      t_i = c_i + 2U
//   certified  E_n = min(log M_b, log(b+1) + U) - c_b    t_i = min(H, c_i + B)
// with b the page's last position, log M_b the log of sum_{j<=b} exp(a_j + c_b - c_j), a_j the
// largest logit key j can have, H the minimum over page ends e' so far of c_e' + beta_e', beta
// bounding -log Z relative to c_e', and Z >= exp(-B) in every row, by its own key or by the sink. E
// rises with n and t falls with i, so the dropped pages are always a growing prefix. Source:
// "Adaptive Computation Pruning for the Forgetting Transformer" (Lin et al.), Algorithm 1 and its
// erratum (the length in log L is b+1 for keys 0..b); the certified bound is this project's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace fox {

// Which pages attention may drop: nothing, by the paper's bound, or by the certified one.
enum class AcpMode : uint8_t { kOff, kPaper, kCertified };

// The log of no mass at all: nothing was dropped.
inline constexpr double kNoMass = -std::numeric_limits<double>::infinity();

// The rounding budget (acp.md section 3).
// Float32 sums and exponentials in everything compared with log eps.
inline constexpr double kAcpSlack = 0x1p-8;
// Up to three roundings to bf16, 2^-8 each: of a query, in norms of keys; of a query and of a key,
// in the products B and U.
inline constexpr double kKeyNormInflation = 1.0 + 0x1p-6;
inline constexpr double kProductInflation = 1.0 + 0x1p-5;
// Rounding of rotated queries and keys, relative to the product of their norms.
inline constexpr double kRotationRounding = 0x1p-6;
// A key in 8 bits is rounded once more, by 1/17 of each element or, near zero, by 2^-17.8 of the
// largest: relative to norms, 2^-13 pays for the latter with heads of up to 256.
inline constexpr double kE4M3Rounding = 0x1p-4, kE4M3LeastRounding = 0x1p-13;
// Rounding of page offsets to float32, relative to the page's largest offset.
inline constexpr double kOffsetRounding = 0x1p-22;
// Rounding of a computed logit, for each of its terms, relative to ||q|| ||k|| / sqrt(d).
inline constexpr double kLogitRounding = 0x1p-23;
// Rounding of float64 sums from page to page, over up to 2^14 pages, relative to their terms.
inline constexpr double kSumRounding = 0x1p-36;
// The least S that bounds a denominator. Weights below 2^-1022 are rounded in S and again, times a
// key, in N; offsets so large that all of a page's weights are so small would leave nothing of N.
inline constexpr double kLeastDecaySum = 0x1p-960;
// Rounding of the log of a row's sum of up to 2^20 weights, each rounded to bf16 by 2^-8; tensor
// cores add them in 2^16 products, each rounded by 2^-23.
inline constexpr double kWeightSumRounding = 0x1p-6;

FOX_HOST_DEVICE inline double LogAddExp(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  if (high == kNoMass) return low + high;  // NaN if `low` is: lost, it would look like no mass
  return high + std::log1p(std::exp(low - high));
}

FOX_HOST_DEVICE inline double LogSumExp(const double* terms, int count) {
  double top = terms[0], sum = 0;
  for (int i = 1; i < count; ++i) top = terms[i] > top ? terms[i] : top;
  for (int i = 0; i < count; ++i) sum += std::exp(terms[i] - top);
  return top + std::log(sum);
}

// log sigmoid(x), clamped from below so that f is never 0 and page offsets keep their precision.
FOX_HOST_DEVICE inline double LogForgetGate(double x, double min_log_gate) {
  const double value = x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
  return value < min_log_gate ? min_log_gate : value;
}

// The clamp for logits in [-bound, bound]: a key before such a gate weighs at most exp(-40) of the
// row's own, so the clamp changes nothing. Infinite or NaN: the bound is unknown.
FOX_HOST_DEVICE inline double MinLogGate(double bound) {
  const double wanted = bound < -kNoMass ? 2 * bound + 40 : 0;
  return -(wanted > 128 ? wanted : 128);
}

// Factor that pays for the rounding of products of queries and keys, in pages of type `kv`.
FOX_HOST_DEVICE inline double ProductInflation(DType kv) {
  return kv == DType::kE4M3 ? kProductInflation * (1 + kE4M3Rounding) : kProductInflation;
}

// U: no logit of a head is above it in size. From the largest |gq| and |gk| of its QK-norm.
FOX_HOST_DEVICE inline double MaxLogitBound(int head_dim, double max_gq, double max_gk, DType kv) {
  return ProductInflation(kv) * std::sqrt(static_cast<double>(head_dim)) * max_gq * max_gk;
}

// B without a sink: no row's logit with its own key is below -B. `max_product`: the largest |gq gk|
// of one dimension. Rotation keeps s_ii, but the rounding of rotated operands is relative to their
// norms and not to the products.
FOX_HOST_DEVICE inline double SelfLogitBound(int head_dim, double max_product, double max_gq,
                                             double max_gk, bool rotates, DType kv) {
  const double any = MaxLogitBound(head_dim, max_gq, max_gk, kv);
  double self = MaxLogitBound(head_dim, max_product, 1, kv);
  if (rotates) self += kRotationRounding * any;
  if (kv == DType::kE4M3) self += (rotates ? kE4M3Rounding : kE4M3LeastRounding) * any;
  return self < any ? self : any;
}

// Largest effect of a page's rounded offsets on a weight's logarithm: added to each term of M and
// subtracted from the weights of S and N. `largest_offset`: c_j - page_cum_log_f of the last key.
FOX_HOST_DEVICE inline double OffsetRounding(double largest_offset) {
  return kOffsetRounding * std::fabs(largest_offset);
}

// An upper bound on the cumulative log gate of a token, from its rounded value page_cum_log_f +
// offset.
FOX_HOST_DEVICE inline double UpperCumulativeGate(double page_cum_log_f, double offset) {
  const double c = page_cum_log_f + offset;
  return c + OffsetRounding(offset) + kSumRounding * std::fabs(c);
}

// E of a page under `paper`: `last` is the page's last position, c_last its cumulative log gate.
FOX_HOST_DEVICE inline double PaperLogMassBound(double last, double c_last) {
  return std::log(last + 1) - c_last + kSumRounding * std::fabs(c_last);
}

// E of a page under `certified`; `u` is U, infinite where unknown. The minimum makes `certified`
// keep at most the pages that `paper` keeps, whatever rounding is paid for. A NaN stays.
FOX_HOST_DEVICE inline double CertifiedLogMassBound(double log_mass, double last, double c_last,
                                                    double u) {
  const double by_length = std::log(last + 1) + u;
  const double mass = log_mass > by_length ? by_length : log_mass;
  return mass - c_last + kSumRounding * (std::fabs(mass) + std::fabs(c_last));
}

// PagedKv::evicted_log_mass from E of the last evicted page; `u`: U, which E leaves out of `paper`.
FOX_HOST_DEVICE inline double EvictedLogMass(AcpMode acp, double log_mass_bound, double u) {
  return acp == AcpMode::kPaper ? log_mass_bound + u : log_mass_bound;
}

// E of a page, at least E of the page before (or of all pages so far). In exact arithmetic E rises;
// rounding must not make it fall, so that a search for a boundary finds the same one wherever it
// begins. A NaN stays.
FOX_HOST_DEVICE inline double RisingLogMassBound(double before, double bound) {
  return before > bound ? before : bound;
}

// H after a page end, from H before it (infinite: none). `sum_bound` is a(-N / S) plus the rounding
// of N, decay_sum S; beta = sum_bound - log S. An S below kLeastDecaySum, a NaN and a beta of
// -infinity, from products that overflow, bound nothing.
FOX_HOST_DEVICE inline double LogDenominatorBound(double before, double c_last, double sum_bound,
                                                  double decay_sum) {
  if (!(decay_sum >= kLeastDecaySum)) return before;
  const double beta = sum_bound - std::log(decay_sum);
  const double bound = c_last + beta + kSumRounding * (std::fabs(c_last) + std::fabs(beta));
  return bound > kNoMass && bound < before ? bound : before;
}

// t of a row or page end whose cumulative log gate is at most `c`. h: H of the last page end, b: B,
// u: U; infinite where unknown. `paper` pays for more rounding than `certified` adds to the lesser
// of its bounds on the mass.
FOX_HOST_DEVICE inline double PageThreshold(AcpMode acp, double h, double c, double b, double u) {
  if (acp == AcpMode::kPaper) return c + 2 * u + kSumRounding * (std::fabs(c) + u);
  return c + b < h ? c + b : h;
}

// A NaN on either side means keep.
FOX_HOST_DEVICE inline bool MayDrop(double log_mass_bound, double threshold, double log_eps) {
  return log_mass_bound + threshold <= log_eps - kAcpSlack;
}

// How far a row's computed log denominator can exceed the exact one, beyond the slack: the rounding
// of float32 logits and of the decay since the first key that it visited. `max_product`: a bound on
// ||q_i|| ||k_j|| / sqrt(d) of the visited keys, for example U. `c`: the row's cumulative log gate;
// `c_first`: page_cum_log_f of the leftmost visited page.
FOX_HOST_DEVICE inline double RowRounding(int head_dim, double max_product, double c,
                                          double c_first) {
  return kLogitRounding * (head_dim + 8) * max_product +
         2 * kOffsetRounding * std::fabs(c - c_first) + kSumRounding * std::fabs(c);
}

// The row certificate (acp.md 2d): true if a row may skip pages 0..n because of its own running
// denominator, log_z = m + log l relative to its own key's decay.
FOX_HOST_DEVICE inline bool MayStop(double log_mass_bound, double c, double log_z, double rounding,
                                    double log_eps) {
  return MayDrop(log_mass_bound + c + rounding, -log_z, log_eps);
}

// The least log_z with which MayStop holds, for kernels that compare in float32: round it up.
FOX_HOST_DEVICE inline double LogDenominatorToStop(double log_mass_bound, double c, double rounding,
                                                   double log_eps) {
  return log_mass_bound + c + rounding - (log_eps - kAcpSlack);
}

}  // namespace fox
