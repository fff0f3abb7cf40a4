// Parameters of the operations on the cache: Append, Attention and Evict.
#pragma once

#include <cstdint>

#include "kernels/core/activation.h"
#include "kernels/core/matrix_view.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/lost_mass.h"

namespace fox {

// How large a logit q.k / sqrt(d) any later query of one head can make, as a function of the key
// (acp.md sections 2a and 5):
//   |s_ij| <= a(k) = scale * || A k || + linear . k + absolute . |k|
// with A a diagonal or a full (dense) matrix.
struct QueryBound {
  const float* diagonal = nullptr;  // [q_heads, head_dim] or null
  const float* dense = nullptr;     // [q_heads, head_dim, head_dim] row-major or null
  const float* linear = nullptr;    // [q_heads, head_dim] or null
  const float* absolute = nullptr;  // [q_heads, head_dim] or null
  double scale = 1.0;               // pays for rounding
  // [q_heads]; infinity where there is none. Inflated for rounding.
  // B: Z_i >= exp(-B) in every row, by its own key (s_ii >= -B) or by the sink (B = -sink).
  const double* self_logit_bound = nullptr;
  const double* max_logit_bound = nullptr;  // U: |s_ij| <= U
  // [q_heads]: an upper bound on ||q_i|| ||k_j|| / sqrt(head_dim), finite where U is not; null: U.
  // Where it bounds nothing, pages are kept: no H, no row certificate.
  const double* max_norm_product = nullptr;
};

// True if the bound is || diagonal * k || alone, as QK-norm gives it.
inline bool IsDiagonal(const QueryBound& bound) {
  return bound.diagonal != nullptr && bound.dense == nullptr && bound.linear == nullptr &&
         bound.absolute == nullptr;
}

FOX_HOST_DEVICE inline double MaxNormProduct(const QueryBound& bound, int head) {
  return (bound.max_norm_product != nullptr ? bound.max_norm_product : bound.max_logit_bound)[head];
}

// Turns the fused projection's columns into queries, keys, values and gates.
struct AppendParams {
  int layer = 0;
  MatrixView projection;  // [num_rows, *] activation dtype; q columns are rewritten in place
  // First columns within `projection`; -1: absent.
  int64_t q_column = 0, k_column = 0, v_column = 0;
  int64_t k_shift_column = -1, v_shift_column = -1;  // kv_heads columns each
  int64_t fgate_column = -1;                         // q_heads columns
  const void* fgate_bias = nullptr;                  // [q_heads] residual dtype, or null
  bool has_gate = true;                              // false: log f = 0
  double min_log_gate = -128.0;                      // clamp (acp.md section 3)
  const void* q_norm = nullptr;  // [q_heads * head_dim] residual dtype, or null: no QK-norm
  const void* k_norm = nullptr;  // [kv_heads * head_dim]
  double qk_norm_eps = 1e-5;
  // Largest norms: q <- q min(1, q_cap / ||q||), before it is rotated; as k. Null: none. Not beside
  // a norm on a GPU.
  const float* q_cap = nullptr;            // [q_heads]
  const float* k_cap = nullptr;            // [kv_heads]
  const double* rope_frequency = nullptr;  // [head_dim / 2] radians per position, or null: no RoPE
  double attention_factor = 1;             // YaRN's: multiplies RoPE's cosines and sines
  QueryBound bound = {};
  AcpMode acp = AcpMode::kOff;
};

// The transform of attention's output before it is stored, per head: the output norm,
// x / sqrt(mean(x^2) + eps) * norm, if there is one; then the output gate, times act(gate), if
// there is one.
struct OutputTransform {
  const void* norm = nullptr;  // [q_heads * head_dim] residual dtype, or null
  double eps = 0;
  MatrixView gate = {};  // [num_rows, q_heads * head_dim] activation dtype, or empty
  Activation act = Activation::kSigmoid;
};

struct AttentionParams {
  int layer = 0;
  MatrixView q;                    // [num_rows, q_heads * head_dim] activation dtype
  MatrixView out;                  // [num_rows, q_heads * head_dim] activation dtype
  OutputTransform transform = {};  // of `out`
  // [q_heads] The logit of a key without a value, to which every row attends and which does not
  // decay: Z_i = exp(sink) + sum_j exp(s_ij + D_ij). Null: none.
  const float* sink = nullptr;
  MatrixView lse = {};  // [num_rows, q_heads] residual dtype: log Z_i, or empty
  AcpMode acp = AcpMode::kOff;
  QueryBound bound = {};
  // Counts, summed over calls, or null: page blocks in the causal range and how many were skipped,
  // by (row, query head, page).
  int64_t* blocks_total = nullptr;   // [num_seqs]
  int64_t* blocks_pruned = nullptr;  // [num_seqs]
};

struct EvictParams {
  AcpMode acp = AcpMode::kOff;
  // As in QueryBound, of all layers: [layers, q_heads].
  const double* self_logit_bound = nullptr;
  const double* max_logit_bound = nullptr;
  int64_t* pages_evicted = nullptr;  // [num_seqs], added to, or null
  // [num_seqs], raised to the largest evicted-mass bound, or null
  double* max_log_evicted_mass = nullptr;
  const double* max_norm_product = nullptr;  // [layers, q_heads], as in QueryBound
  // [layers, q_heads] The log of the largest ||v||, where an output norm follows; else null.
  const double* log_max_value = nullptr;
  // [num_seqs] Set to bounds on the mass that the sequence's rows lost to pages that page ends
  // before their own page have evicted, or null. REQUIRES: Attention of the step's rows in all
  // layers.
  LostMass* lost_mass = nullptr;
  // [layers] AppendParams::bound of each, and whether IsDiagonal holds for all. Null only if no
  // decode row can have filled a page since its Append.
  const QueryBound* bounds = nullptr;
  bool diagonal = false;
};

}  // namespace fox
