// FoxWeights: all weights of a model, packed for a backend. The data dictionary of the model: every
// tensor, its shape, and when it exists. Made once by LoadWeights; constant afterwards.
// D hidden size, H query heads, K kv heads, d head_dim, Q = H*d, I intermediate size, V vocabulary.
// The "residual dtype" is float64 in the f64 mode, else float32.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/interface/ops.h"
#include "models/checkpoint/checkpoint.h"
#include "models/query_bounds.h"

namespace fox {

// 16 bytes of bf16: cuBLASLt has slower kernels for other numbers of outputs, which gates of nine
// or 28 heads would make.
inline constexpr int64_t kColumnsMultiple = 8;

// Columns of the fused projection [q | k | v | ogate | k_shift | v_shift | fgate]; -1: absent.
struct ProjectionColumns {
  int64_t q = 0;         // Q
  int64_t k = 0;         // K*d
  int64_t v = 0;         // K*d
  int64_t ogate = -1;    // Q
  int64_t k_shift = -1;  // K
  int64_t v_shift = -1;  // K
  int64_t fgate = -1;    // H
  int64_t total = 0;     // with columns of zeros behind them, up to a multiple of kColumnsMultiple

  // Elements from one row of the projection's output to the next. A bf16 row starts at a multiple
  // of 128 bytes, so that a head's part of it is in as few cache lines as its size allows.
  int64_t stride(DType dtype) const {
    return dtype == DType::kBF16 ? (total + 63) / 64 * 64 : total;
  }
};

ProjectionColumns ColumnsOf(const ModelConfig& config);

struct LayerWeights {
  Buffer attn_norm;                          // [D] residual dtype
  std::unique_ptr<PackedWeight> projection;  // [ProjectionColumns::total, D]
  Buffer projection_bias;                    // [total] residual dtype; qkv_bias
  Buffer fgate_bias;                         // [H] residual dtype; all gates but kNone
  Buffer q_norm;                             // [Q] residual dtype; qk_norm
  Buffer k_norm;                             // [K*d] residual dtype; qk_norm
  Buffer q_cap;                              // [H] float32; qk_norm_cap
  Buffer k_cap;                              // [K] float32; qk_norm_cap
  Buffer sinks;                              // [H] float32; attention_sink
  Buffer output_norm;                        // [Q] residual dtype; output_norm
  std::unique_ptr<PackedWeight> o;           // [D, Q]
  Buffer mlp_norm;                           // [D] residual dtype
  std::unique_ptr<PackedWeight> gate_up;     // [2I, D], gate first
  std::unique_ptr<PackedWeight> down;        // [D, I]
  DeviceQueryBound bound;                    // bounds on attention logits (acp.md)
};

// How linear layers store their weights (kernels/core/weight_format.h). Forget gates and token
// shifts, whose errors add up along a sequence, are never rounded. With kQ8 and with kQ4, whose
// loss would be large otherwise, the matrices of the vocabulary are kQ8.
enum class Quantization {
  kNone,
  kFp8,  // 8 bits and a power of two for each row
  kQ8,   // blocks, 8.5 bits a weight; on the CPU
  kQ4,   // blocks, 4.5 bits a weight; on the CPU
};

struct FoxWeights {
  ModelConfig config;
  Quantization quantization = Quantization::kNone;
  DType residual_dtype = DType::kF32;
  ProjectionColumns columns;
  Buffer embeddings;  // [V, D] in the checkpoint's dtype; empty: embedding_blocks() has them
  DType embeddings_dtype = DType::kF32;
  Buffer rope_frequency;  // [d/2] float64 radians per position; use_rope
  std::vector<LayerWeights> layers;
  // [layers, H] float64: QueryBound's, of all layers
  Buffer self_logit_bound, max_logit_bound, max_norm_product;
  Buffer log_max_value;                   // [layers, H] float64, as in EvictParams; output_norm
  Buffer bounds;                          // [layers] QueryBound of each, for EvictParams
  bool diagonal_bounds = false;           // IsDiagonal holds for all of them
  Buffer final_norm;                      // [D] residual dtype
  std::unique_ptr<PackedWeight> lm_head;  // [V, D]
  std::unique_ptr<PackedWeight> own_embedding_blocks;  // [V, D]; kQ8, kQ4, unless tied

  const PackedWeight& embedding_blocks() const {
    return own_embedding_blocks ? *own_embedding_blocks : *lm_head;
  }
  // Bytes of linear weights, which a decode step reads once.
  size_t linear_bytes() const;
  size_t embedding_bytes() const;  // beside the head's
};

// REQUIRES: not kNone.
WeightFormat FormatOf(Quantization quantization);
// True if weights become blocks, and those of the vocabulary too.
constexpr bool IsBlocks(Quantization quantization) {
  return quantization == Quantization::kQ8 || quantization == Quantization::kQ4;
}

// Called with the number of layers done, from 0 to the number of layers.
using LoadProgress = std::function<void(int done, int total)>;

// `residual_dtype`: f64 or f32. The bounds hold for the weights after rounding and for keys in
// `kv_dtype`. REQUIRES: unless kNone all weights are finite; with kQ8 and kQ4 f32. The checkpoint
// may be destroyed afterwards.
FoxWeights LoadWeights(const Checkpoint& checkpoint, Ops& ops, DType residual_dtype,
                       Quantization quantization, DType kv_dtype, const LoadProgress& progress);

}  // namespace fox
