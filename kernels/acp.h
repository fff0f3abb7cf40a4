// Adaptive Computation Pruning: the decisions, as scalar functions in float64 that every backend
// shares. The promise: the attention weight of everything a row does not see is at most eps.
//
// Both bounds have one form. A full page n carries a score E_n, a row i a threshold t_i, and pages
// 0..n may be dropped for row i (and all later rows) when
//     E_n + t_i <= log eps - kSlack.
//   paper      E_n = log(b+1) - c_b          t_i = c_i + 2U     (b: the page's last position)
//   certified  E_n = log M_b - c_b           t_i = min(H, c_i + B)
// with log M_b the log of sum_{j<=b} exp(a_j + c_b - c_j), a_j the largest logit key j can have,
// and H the minimum over page ends e' so far of c_e' + beta_e', beta bounding -log Z relative to
// c_e'. E rises with n and t falls with i, so what is dropped is always a growing prefix. Source:
// "Adaptive Computation Pruning for the Forgetting Transformer" (Lin et al.), Algorithm 1 and its
// erratum (the length in log L is b+1 for keys 0..b); the certified bound is this project's.
#pragma once

#include <cmath>
#include <limits>

namespace fox {

// The log of no mass at all: nothing was dropped.
inline constexpr double kNoMass = -std::numeric_limits<double>::infinity();

// Pays for float32 rounding in everything compared with log eps.
inline constexpr double kAcpSlack = 1.0 / 256;
// Pay for up to three bf16 roundings of a query: norms of keys, and the products B and U.
inline constexpr double kKeyNormInflation = 1.0 + 1.0 / 64;
inline constexpr double kProductInflation = 1.0 + 1.0 / 32;

inline double LogAddExp(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  if (high == -std::numeric_limits<double>::infinity()) return high;
  return high + std::log1p(std::exp(low - high));
}

inline double LogSumExp(const double* terms, int count) {
  double top = terms[0], sum = 0;
  for (int i = 1; i < count; ++i) top = terms[i] > top ? terms[i] : top;
  for (int i = 0; i < count; ++i) sum += std::exp(terms[i] - top);
  return top + std::log(sum);
}

// log sigmoid(x), clamped from below so that f is never 0 and page offsets keep their precision.
inline double LogForgetGate(double x, double min_log_gate) {
  const double value = x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
  return value < min_log_gate ? min_log_gate : value;
}

// The clamp for a head whose own logit is at least -B; B infinite when unknown.
inline double MinLogGate(double b) {
  const double wanted = std::isfinite(b) ? 2 * b + 40 : 0;
  return -(wanted > 128 ? wanted : 128);
}

// The paper's page bound: `last` is the page's last position, c_last its cumulative log gate.
inline double PaperLogMassBound(double last, double c_last) { return std::log(last + 1) - c_last; }

// A NaN on either side means keep.
inline bool MayDrop(double score, double threshold, double log_eps) {
  return score + threshold <= log_eps - kAcpSlack;
}

}  // namespace fox
