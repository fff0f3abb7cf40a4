// Attention of random heads, naively. See head_sequence.h.
#include <algorithm>
#include <cmath>

#include "kernels/paging/acp.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {
namespace {

std::vector<double> Normalized(std::vector<double> x, const double* weight) {
  double square = 0;
  for (double value : x) square += value * value;
  const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + kNormEps);
  for (size_t m = 0; m < x.size(); ++m) x[m] *= scale * weight[m];
  return x;
}

void Cap(std::vector<double>& x, double cap) {
  double square = 0;
  for (double value : x) square += value * value;
  const double scale = std::min(1.0, cap / std::sqrt(square));
  for (double& value : x) value *= scale;
}

void Rotate(std::vector<double>& x, const HeadInputs& in, int64_t position) {
  const size_t half = in.rope_frequency.size();
  for (double& value : x) value *= in.shape.attention_factor;
  for (size_t m = 0; m < half; ++m) {
    const double angle = static_cast<double>(position) * in.rope_frequency[m];
    const double low = x[m], high = x[half + m];
    x[m] = low * std::cos(angle) - high * std::sin(angle);
    x[half + m] = high * std::cos(angle) + low * std::sin(angle);
  }
}

class Naive {
 public:
  explicit Naive(const HeadInputs& inputs) : in_(inputs), d_(inputs.shape.head_dim) {}

  std::vector<double> Query(int64_t row, int head) const {
    std::vector<double> q = Slice(row, static_cast<int64_t>(head) * d_);
    if (in_.shape.qk_norm) q = Normalized(q, in_.q_norm.data() + head * d_);
    if (in_.shape.norm_caps) Cap(q, in_.q_cap[static_cast<size_t>(head)]);
    if (in_.shape.rope) Rotate(q, in_, row);
    return q;
  }
  std::vector<double> Key(int64_t row, int head) const {
    std::vector<double> k = Shifted(row, in_.shape.hidden() + static_cast<int64_t>(head) * d_,
                                    in_.shape.k_shift ? in_.k_shift_column() + head : -1);
    if (in_.shape.qk_norm) k = Normalized(k, in_.k_norm.data() + head * d_);
    if (in_.shape.norm_caps) Cap(k, in_.k_cap[static_cast<size_t>(head)]);
    if (in_.shape.rope) Rotate(k, in_, row);
    return k;
  }
  std::vector<double> Value(int64_t row, int head) const {
    return Shifted(row, in_.shape.hidden() + in_.shape.kv() + static_cast<int64_t>(head) * d_,
                   in_.shape.v_shift ? in_.v_shift_column() + head : -1);
  }
  // The output norm and gate of a head's output.
  std::vector<double> Transformed(int64_t row, int head, std::vector<double> out) const {
    const HeadShape& shape = in_.shape;
    const int64_t first = static_cast<int64_t>(head) * d_;
    if (shape.output_norm) out = Normalized(out, in_.output_norm.data() + first);
    if (!shape.output_gate) return out;
    for (int m = 0; m < d_; ++m) {
      const double gate = in_.at(row, in_.output_gate_column() + first + m);
      const double act = shape.gate_act == Activation::kSilu ? gate : 1;
      out[static_cast<size_t>(m)] *= act / (1 + std::exp(-gate));
    }
    return out;
  }
  double LogGate(int64_t row, int head) const {
    const double x = in_.at(row, in_.gate_column() + head);
    return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
  }

 private:
  std::vector<double> Slice(int64_t row, int64_t column) const {
    std::vector<double> x(static_cast<size_t>(d_));
    for (int m = 0; m < d_; ++m) x[static_cast<size_t>(m)] = in_.at(row, column + m);
    return x;
  }
  std::vector<double> Shifted(int64_t row, int64_t column, int64_t gate) const {
    std::vector<double> x = Slice(row, column);
    if (gate < 0) return x;
    const double alpha = 1 / (1 + std::exp(-in_.at(row, gate)));
    for (int m = 0; m < d_; ++m) {
      const double before = row == 0 ? 0 : in_.at(row - 1, column + m);
      x[static_cast<size_t>(m)] = alpha * before + (1 - alpha) * x[static_cast<size_t>(m)];
    }
    return x;
  }

  const HeadInputs& in_;
  int d_;
};

}  // namespace

HeadOutputs NaiveAttention(const HeadInputs& in) {
  const Naive naive(in);
  const int d = in.shape.head_dim, group = in.shape.q_heads / in.shape.kv_heads;
  HeadOutputs result;
  result.out.resize(static_cast<size_t>(in.length * in.shape.hidden()));
  result.lse.resize(static_cast<size_t>(in.length * in.shape.q_heads));
  for (int h = 0; h < in.shape.q_heads; ++h) {
    std::vector<std::vector<double>> keys, values;
    std::vector<double> c;
    double total = 0;
    for (int64_t i = 0; i < in.length; ++i) {
      keys.push_back(naive.Key(i, h / group));
      values.push_back(naive.Value(i, h / group));
      c.push_back(total += naive.LogGate(i, h));
      const std::vector<double> q = naive.Query(i, h);
      std::vector<double> logits;
      for (size_t j = 0; j <= static_cast<size_t>(i); ++j) {
        double dot = 0;
        for (size_t m = 0; m < q.size(); ++m) dot += q[m] * keys[j][m];
        logits.push_back(dot / std::sqrt(d) + c.back() - c[j]);
      }
      double top = *std::max_element(logits.begin(), logits.end());
      const double sink = in.shape.sink ? in.sink[static_cast<size_t>(h)] : kNoMass;
      top = std::max(top, sink);
      double sum = std::exp(sink - top);
      std::vector<double> out(static_cast<size_t>(d));
      for (size_t j = 0; j < logits.size(); ++j) {
        const double weight = std::exp(logits[j] - top);
        sum += weight;
        for (size_t m = 0; m < out.size(); ++m) out[m] += weight * values[j][m];
      }
      for (double& x : out) x /= sum;
      out = naive.Transformed(i, h, out);
      std::copy(out.begin(), out.end(), result.out.begin() + i * in.shape.hidden() + h * d);
      result.lse[static_cast<size_t>(i * in.shape.q_heads + h)] = top + std::log(sum);
    }
  }
  return result;
}

}  // namespace fox::testing
