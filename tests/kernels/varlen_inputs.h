// Random inputs of varlen forgetting attention, and float64 arrays for everything that goes in and
// comes out. Queries, keys, values and d_out are rounded to bf16 and gates to float32, so that a
// device gets exactly these numbers; tokens of no sequence are NaN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/paging/acp.h"
#include "tests/kernels/relative_error.h"

namespace fox::testing {

struct VarlenCase {
  int q_heads = 2, kv_heads = 2, head_dim = 64;
  // Packed: sequences [begin, end) of one row. Otherwise sequence s lies in batch row s.
  bool packed = false;
  std::vector<std::pair<int32_t, int32_t>> sequences;
  int tokens = 0;  // of a batch row; 0: the largest end
  // Arrays [batch][heads][tokens][head_dim] instead of [batch][tokens][heads][head_dim].
  bool head_first = false;
  int padding = 0;  // elements between the rows of the outer dimension but batch, not of gates
  // Gate logits N(mean, 1), a mean for each query head; repeats.
  std::vector<double> gate_means = {2, 5, -1, 8};
  double strong_gate_rate = 0;  // of tokens; the log gate is between strong_gate and half of it
  double strong_gate = -40;
  bool equal_keys = false;
  double scale = 0;  // 0: 1 / sqrt(head_dim)
  uint64_t seed = 1;
  // For tables of cases on the device.
  std::string name;
  AcpMode acp = AcpMode::kOff;
  bool random_pages = false;  // first pages of any value that the contract allows
};

// Sequences of these lengths one after the other, in one packed row.
VarlenCase PackedCase(const std::vector<int>& lengths);
// Sequences from token 0 on, a batch row each.
VarlenCase BatchCase(const std::vector<int>& lengths);

// An array and its strides. T: double here; the device's arrays have the same layout.
template <typename T>
struct VarlenArray {
  std::vector<T> values;
  int batch = 0, tokens = 0, heads = 0, head_dim = 0;  // 1 for gates
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;

  T& At(int64_t row, int64_t token, int64_t head, int64_t m = 0) {
    return values[static_cast<size_t>(row * batch_stride + token * token_stride +
                                      head * head_stride + m)];
  }
  const T& At(int64_t row, int64_t token, int64_t head, int64_t m = 0) const {
    return const_cast<VarlenArray*>(this)->At(row, token, head, m);
  }
};

struct VarlenInputs {
  explicit VarlenInputs(const VarlenCase& shape);

  VarlenCase shape;
  int batch = 0, tokens = 0;
  std::vector<int32_t> begin, end;
  double scale = 0;
  VarlenArray<double> q, k, v, log_fgate, d_out;     // random
  VarlenArray<double> out, dq, dk, dv, d_log_fgate;  // NaN until computed

  // body(seq, batch, token, position) for all tokens of sequences.
  template <typename Body>
  void ForEachToken(const Body& body) const {
    for (int s = 0; s < num_seqs(); ++s) {
      for (int i = 0; i < length(s); ++i) {
        body(s, BatchOf(s), begin[static_cast<size_t>(s)] + i, i);
      }
    }
  }
  int num_seqs() const { return static_cast<int>(begin.size()); }
  int BatchOf(int seq) const { return shape.packed ? 0 : seq; }
  int length(int seq) const {
    const auto s = static_cast<size_t>(seq);
    return end[s] > begin[s] ? end[s] - begin[s] : 0;
  }
  // Index into an array [batch][tokens][q_heads].
  size_t RowIndex(int seq, int position, int head) const;
  size_t num_rows() const;  // batch * tokens * q_heads
  // kernels/paging/acp.h's bounds from the queries and keys themselves, [count][q_heads]: the
  // largest norm of a sequence's queries, and the paper's threshold -2U - log length + log_eps.
  std::vector<float> MaxQueryNorms() const;
  std::vector<float> PaperThresholds(double log_eps) const;

  // The oracle of every kernel: forward and backward straight from the definition, quadratic in the
  // length. first_key [batch][tokens][q_heads]: the first key that a row sees, counted in its
  // sequence, at most its own; empty: all from 0 on. Tokens of no sequence get zeros.
  //
  // c_i = sum of log f from the sequence's first token to i, natural units:
  // [batch][tokens][q_heads].
  std::vector<double> CumulativeGates();
  // Writes `out`; gives [batch][tokens][q_heads] log sum_j exp(scale q_i.k_j + c_i - c_j) over the
  // keys that row i sees, natural units, its own decay c_i included. (The device's, in log2 units
  // and relative to c of the tile's first token, is log2(e) (lse_i - c_i + c_ref).)
  std::vector<double> Forward(const std::vector<int32_t>& first_key = {});
  // Writes dq, dk, dv and d_log_fgate; `out` is not read. Pruned weights count as constant.
  void Backward(const std::vector<int32_t>& first_key = {});
};

}  // namespace fox::testing
