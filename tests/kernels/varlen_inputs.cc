// Layouts and random numbers. See varlen_inputs.h.
#include "tests/kernels/varlen_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/core/dtype.h"

namespace fox::testing {
namespace {

double RoundToBf16(double x) {
  return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

VarlenArray<double> MakeArray(const VarlenInputs& inputs, int heads, int head_dim) {
  VarlenArray<double> array;
  array.batch = inputs.batch;
  array.tokens = inputs.tokens;
  array.heads = heads;
  array.head_dim = head_dim;
  const int padding = head_dim > 1 ? inputs.shape.padding : 0;
  if (inputs.shape.head_first) {
    array.token_stride = head_dim;
    array.head_stride = int64_t{inputs.tokens} * head_dim + padding;
    array.batch_stride = heads * array.head_stride;
  } else {
    array.head_stride = head_dim;
    array.token_stride = int64_t{heads} * head_dim + padding;
    array.batch_stride = inputs.tokens * array.token_stride;
  }
  array.values.assign(static_cast<size_t>(inputs.batch * array.batch_stride), kNaN);
  return array;
}

double Norm(const double* x, int count) {
  double square = 0;
  for (int m = 0; m < count; ++m) square += x[m] * x[m];
  return std::sqrt(square);
}

}  // namespace

VarlenCase PackedCase(const std::vector<int>& lengths) {
  VarlenCase shape;
  shape.packed = true;
  int32_t token = 0;
  for (const int length : lengths) {
    shape.sequences.push_back({token, token + length});
    token += length;
  }
  return shape;
}

VarlenCase BatchCase(const std::vector<int>& lengths) {
  VarlenCase shape;
  for (const int length : lengths) shape.sequences.push_back({0, length});
  return shape;
}

VarlenInputs::VarlenInputs(const VarlenCase& given) : shape(given) {
  for (const auto& [first, last] : shape.sequences) {
    begin.push_back(first);
    end.push_back(last);
    tokens = std::max({tokens, static_cast<int>(last), shape.tokens});
  }
  batch = shape.packed ? 1 : num_seqs();
  scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  std::mt19937_64 random(shape.seed);
  std::normal_distribution<double> normal;
  for (VarlenArray<double>* array : {&q, &d_out, &out, &dq}) {
    *array = MakeArray(*this, shape.q_heads, shape.head_dim);
  }
  for (VarlenArray<double>* array : {&k, &v, &dk, &dv}) {
    *array = MakeArray(*this, shape.kv_heads, shape.head_dim);
  }
  for (VarlenArray<double>* array : {&log_fgate, &d_log_fgate}) {
    *array = MakeArray(*this, shape.q_heads, 1);
  }
  for (VarlenArray<double>* array : {&q, &k, &v, &d_out}) {
    for (double& x : array->values) x = RoundToBf16(normal(random));
  }
  for (int b = 0; b < batch; ++b) {
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < shape.q_heads; ++h) {
        const double mean = shape.gate_means[static_cast<size_t>(h) % shape.gate_means.size()];
        const double logit = mean + normal(random);
        log_fgate.At(b, t, h) =
            static_cast<double>(static_cast<float>(-std::log1p(std::exp(-logit))));
      }
    }
  }
  std::uniform_real_distribution<double> uniform;
  for (double& gate : log_fgate.values) {
    if (uniform(random) >= shape.strong_gate_rate) continue;
    gate = static_cast<double>(static_cast<float>(shape.strong_gate * (1 - uniform(random) / 2)));
  }
  std::vector<bool> of_sequence(static_cast<size_t>(batch * tokens));
  ForEachToken(
      [&](int, int b, int t, int) { of_sequence[static_cast<size_t>(b * tokens + t)] = true; });
  for (VarlenArray<double>* array : {&q, &k, &v, &d_out, &log_fgate}) {
    for (int i = 0; i < batch * tokens * array->heads * array->head_dim; ++i) {
      const int m = i % array->head_dim, row = i / array->head_dim;
      const int h = row % array->heads, token = row / array->heads;
      double& x = array->At(token / tokens, token % tokens, h, m);
      if (array == &k && shape.equal_keys) x = k.At(0, 0, h, m);
      if (!of_sequence[static_cast<size_t>(token)]) x = kNaN;
    }
  }
}

size_t VarlenInputs::RowIndex(int seq, int position, int head) const {
  const int64_t token = int64_t{BatchOf(seq)} * tokens + begin[static_cast<size_t>(seq)] + position;
  return static_cast<size_t>(token * shape.q_heads + head);
}

size_t VarlenInputs::num_rows() const {
  return static_cast<size_t>(batch) * static_cast<size_t>(tokens) *
         static_cast<size_t>(shape.q_heads);
}

std::vector<float> VarlenInputs::MaxQueryNorms() const {
  std::vector<float> norms;
  for (int s = 0; s < num_seqs(); ++s) {
    for (int h = 0; h < shape.q_heads; ++h) {
      double largest = 0;
      for (int i = 0; i < length(s); ++i) {
        const double* row = &q.At(BatchOf(s), begin[static_cast<size_t>(s)] + i, h);
        largest = std::max(largest, Norm(row, shape.head_dim));
      }
      norms.push_back(
          std::nextafter(static_cast<float>(largest), std::numeric_limits<float>::infinity()));
    }
  }
  return norms;
}

std::vector<float> VarlenInputs::PaperThresholds(double log_eps) const {
  const std::vector<float> query_norms = MaxQueryNorms();
  std::vector<float> thresholds;
  for (int s = 0; s < num_seqs(); ++s) {
    for (int h = 0; h < shape.q_heads; ++h) {
      double key_norm = 0;
      for (int j = 0; j < length(s); ++j) {
        const double* row = &k.At(BatchOf(s), begin[static_cast<size_t>(s)] + j,
                                  h / (shape.q_heads / shape.kv_heads));
        key_norm = std::max(key_norm, Norm(row, shape.head_dim));
      }
      const double u = static_cast<double>(query_norms[thresholds.size()]) * key_norm * scale;
      thresholds.push_back(static_cast<float>(-2 * u - std::log(std::max(1, length(s))) + log_eps));
    }
  }
  return thresholds;
}

}  // namespace fox::testing
