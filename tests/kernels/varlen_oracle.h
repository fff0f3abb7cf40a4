// Varlen forgetting attention in float64, forward and backward, straight from the definition: the
// oracle of every kernel for it. Quadratic in the length, parallel over sequences and kv heads.
//
// All views of the parameters are float64 arrays on the host, including the gates. `acp` and its
// parameters, and `deterministic`, are ignored here: first_key says what is pruned.
#pragma once

#include <cstdint>

#include "kernels/varlen_attention.h"

namespace fox {

// c_i = sum of log f from the sequence's first token to i, natural units: [batch][tokens][q_heads];
// 0 for tokens of no sequence.
void VarlenCumulativeGates(const VarlenAttentionParams& params, double* cum_log_f);

// Writes params.out, zeros for tokens of no sequence, and, unless null, lse [batch][tokens]
// [q_heads]: log sum_j exp(scale q_i.k_j + c_i - c_j) over the keys that row i sees, natural units,
// its own decay c_i included; 0 for tokens of no sequence. (The device's, in log2 units and
// relative to c of the tile's first token, is log2(e) (lse_i - c_i + c_ref).)
// first_key, unless null, [batch][tokens][q_heads]: the first key that row i sees, counted in its
// sequence, at most its own; null: all from 0 on.
void VarlenForwardFloat64(const VarlenAttentionParams& params, const int32_t* first_key = nullptr,
                          double* lse = nullptr);

// Writes params.dq, dk, dv and d_log_fgate from q, k, v, log_fgate and d_out; out is not read.
// Pruned weights count as constant.
void VarlenBackwardFloat64(const VarlenAttentionParams& params, const int32_t* first_key = nullptr);

}  // namespace fox
