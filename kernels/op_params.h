// The operations' parameters as plain data: shapes, strides, units. No ownership, no behaviour.
#pragma once

#include <cstdint>

#include "kernels/core/matrix_view.h"
#include "kernels/paged_kv.h"

namespace fox {

// Which pages attention may drop (acp.md): nothing, by the paper's bound, or by the certified one.
enum class AcpMode : uint8_t { kOff, kPaper, kCertified };

// One step's ragged batch: every sequence brings one or more consecutive tokens. Arrays are
// readable by the backend. A slot appears at most once.
struct BatchView {
  int num_seqs = 0;
  int64_t num_rows = 0;                   // tokens of all sequences
  const int32_t* token_ids = nullptr;     // [num_rows]
  const int32_t* slot = nullptr;          // [num_seqs]
  const int64_t* row_begin = nullptr;     // [num_seqs + 1]
  const int64_t* position = nullptr;      // [num_seqs] absolute position of the first row
  const double* log_tolerance = nullptr;  // [num_seqs] log eps; -infinity: nothing is dropped
};

// How large a logit q.k / sqrt(d) any later query of one head can make, as a function of the key
// (acp.md sections 2a and 5):
//   |s_ij| <= a(k) = scale * || A k || + linear . k + absolute . |k|
// with A diagonal or dense.
struct QueryBound {
  const float* diagonal = nullptr;  // [q_heads, head_dim] or null
  const float* dense = nullptr;     // [q_heads, head_dim, head_dim] row-major or null
  const float* linear = nullptr;    // [q_heads, head_dim] or null
  const float* absolute = nullptr;  // [q_heads, head_dim] or null
  double scale = 1.0;               // pays for rounding
  // [q_heads]; infinity where there is none (no QK-norm). Inflated for rounding.
  const double* self_logit = nullptr;  // B: s_ii >= -B
  const double* any_logit = nullptr;   // U: |s_ij| <= U
};

// Turns the fused projection's columns into queries, keys, values and gates.
struct AppendParams {
  int layer = 0;
  MatrixView projection;  // [num_rows, *] wide dtype; q columns are rewritten in place
  // First columns within `projection`; -1: absent.
  int64_t q_column = 0, k_column = 0, v_column = 0;
  int64_t k_shift_column = -1, v_shift_column = -1;  // kv_heads columns each
  int64_t fgate_column = -1;                         // q_heads columns
  const void* fgate_bias = nullptr;                  // [q_heads] wide dtype, or null
  bool has_gate = true;                              // false: log f = 0
  double min_log_gate = -128.0;                      // clamp (acp.md section 3)
  const void* q_norm = nullptr;  // [q_heads * head_dim] wide dtype, or null: no QK-norm
  const void* k_norm = nullptr;  // [kv_heads * head_dim]
  double qk_norm_eps = 1e-5;
  const double* rope_frequency = nullptr;  // [head_dim / 2] radians per position, or null: no RoPE
  QueryBound bound;
  AcpMode acp = AcpMode::kOff;
};

struct AttentionParams {
  int layer = 0;
  MatrixView q;        // [num_rows, q_heads * head_dim] wide dtype
  MatrixView out;      // [num_rows, q_heads * head_dim] wide dtype
  MatrixView log_sum;  // [num_rows, q_heads] wide dtype: log sum exp, or empty
  AcpMode acp = AcpMode::kOff;
  QueryBound bound;
  // Counts, summed over calls, or null: page blocks in the causal range and how many were skipped,
  // by (row, query head, page).
  int64_t* blocks_total = nullptr;    // [num_seqs]
  int64_t* blocks_skipped = nullptr;  // [num_seqs]
};

struct EvictParams {
  int layer = 0;
  AcpMode acp = AcpMode::kOff;
  QueryBound bound;
  int64_t* pages_evicted = nullptr;  // [num_seqs], added to, or null
};

}  // namespace fox
