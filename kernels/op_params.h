// The operations' parameters as plain data: shapes, strides, units. No ownership, no behaviour.
#pragma once

#include <cstdint>

#include "kernels/acp.h"
#include "kernels/core/matrix_view.h"
#include "kernels/paged_kv.h"

namespace fox {

// A token id that stands for the token which Ops::Sample last drew for the row's slot.
inline constexpr int32_t kLastSampledToken = -1;

// One step's ragged batch: every sequence brings one or more consecutive tokens. Arrays are
// readable by the backend. A slot appears at most once; a sequence with slot -1 pads the batch and
// touches nothing (its one row computes garbage that nobody reads).
struct BatchView {
  int num_seqs = 0;
  int64_t num_rows = 0;                   // tokens of all sequences
  const int32_t* token_ids = nullptr;     // [num_rows]
  const int32_t* slot = nullptr;          // [num_seqs]
  const int64_t* row_begin = nullptr;     // [num_seqs + 1]
  const int64_t* position = nullptr;      // [num_seqs] absolute position of the first row
  const double* log_tolerance = nullptr;  // [num_seqs] log eps; -infinity: nothing is dropped
  const int32_t* sampled_tokens =
      nullptr;  // [max_slots], for kLastSampledToken; null: there is none
  // At most kSmallBatchRows sequences, one row each, none longer than kSmallBatchTokens after the
  // step: latency is all, and kernels may choose by it.
  bool small = false;
};

inline constexpr int kSmallBatchRows = 4;
inline constexpr int64_t kSmallBatchTokens = 8192;

// What becomes of a row before a linear layer multiplies it.
struct InputTransform {
  enum class Kind : uint8_t {
    kNone,
    kRmsNorm,     // x / sqrt(mean(x^2) + eps) * weight; weight [cols] residual dtype
    kOutputGate,  // the same per head of head_dim where weight is there; then times act(gate)
                  // where gate [rows, cols] is there
    kGatedAct     // act(x[:I]) * x[I:], I = cols / 2
  };
  Kind kind = Kind::kNone;
  const void* weight = nullptr;
  double eps = 0;
  int head_dim = 0;
  MatrixView gate;
  bool silu = false;   // act: x * sigmoid(x), else sigmoid
  MatrixView scratch;  // [rows, in] activation dtype, for backends that do not fuse; kNone: unused
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
  const double* self_logit_bound = nullptr;  // B: s_ii >= -B
  const double* max_logit_bound = nullptr;   // U: |s_ij| <= U
  // [q_heads]: ||q_i|| ||k_j|| / sqrt(head_dim) at most, finite where U is not; null: U. What
  // cannot be bounded by it is kept: no H, no row certificate.
  const double* max_norm_product = nullptr;
};

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
  const double* rope_frequency = nullptr;  // [head_dim / 2] radians per position, or null: no RoPE
  QueryBound bound;
  AcpMode acp = AcpMode::kOff;
};

struct AttentionParams {
  int layer = 0;
  MatrixView q;    // [num_rows, q_heads * head_dim] activation dtype
  MatrixView out;  // [num_rows, q_heads * head_dim] activation dtype
  MatrixView lse;  // [num_rows, q_heads] residual dtype: log sum exp, or empty
  AcpMode acp = AcpMode::kOff;
  QueryBound bound;
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
  double* max_log_evicted_mass =
      nullptr;  // [num_seqs], raised to the largest evicted-mass bound, or null
};

// What a slot's sampling knows of one token of the vocabulary. Samples read it where a
// LogitsProcessorParams is on, and count the token they sample.
struct alignas(8) TokenPenaltyState {
  float bias = 0;     // added to its logit
  uint32_t bits = 0;  // the flags below, and how often it was generated
};
inline constexpr uint32_t kTokenAllowed = uint32_t{1} << 31;
inline constexpr uint32_t kTokenStops = uint32_t{1} << 30;
inline constexpr uint32_t kTokenInPrompt = uint32_t{1} << 29;
inline constexpr uint32_t kTokenGenerated = kTokenInPrompt - 1;  // mask of the count

struct PenaltyEntry {
  int32_t id = 0;
  TokenPenaltyState state;
};

// Makes a slot's token states: all zero, then those of the entries.
struct PenaltyStateParams {
  int32_t slot = 0;
  int64_t vocab_size = 0;
  // [count] readable by the backend. Biases of one token add up, its bits are or-ed; ids outside
  // [0, vocab_size) are ignored.
  const PenaltyEntry* entries = nullptr;
  int64_t count = 0;
  TokenPenaltyState* penalty_state = nullptr;  // [max_slots, vocab_size]
};

// How a row's logits are changed before temperature and filters, by the slot's token states; the
// order is that of engine/sampler.h.
struct LogitsProcessorParams {
  bool on = false;            // false: nothing below matters and token states are not read
  bool only_allowed = false;  // tokens without kTokenAllowed are masked
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t stops_from = 0;  // tokens with kTokenStops are masked at positions before
};

// How to sample one token, plain data in the backend's memory.
struct SampleRow {
  int32_t slot = -1;      // -1: padding, nothing is sampled
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;      // 0: off
  int32_t logprobs = -1;  // how many of the best to report, at most kMaxSampledLogprobs; -1: none
  uint64_t seed = 0;      // Philox key
  uint64_t position = 0;  // Philox counter: the sampled token's index in prompt + generated
  LogitsProcessorParams logits_processor = {};
};

inline constexpr int kMaxSampledLogprobs = 20;

enum class SampleStatus : int32_t {
  kSampled,
  kNotFinite,  // a logit is NaN or infinite
  kAllMasked
};

struct SampleRecord {
  int32_t id = 0;  // a valid token even where none was sampled
  SampleStatus status = SampleStatus::kSampled;
  // Valid when logprobs were asked for: of the processed logits, before temperature.
  float logprob = 0;
  int32_t rank = 0;  // 1 is the most likely
  int32_t top_ids[kMaxSampledLogprobs];
  float top_logprobs[kMaxSampledLogprobs];
};

struct SampleParams {
  MatrixView logits;  // [rows, V] residual dtype; rows with an logits_processor are overwritten
  const SampleRow* rows = nullptr;    // [rows]
  SampleRecord* sampled = nullptr;    // [rows]
  int32_t* sampled_tokens = nullptr;  // [max_slots]
  TokenPenaltyState* penalty_state =
      nullptr;  // [max_slots, V]; null where no row has an logits_processor
};

}  // namespace fox
