// FoxModel: the Forgetting Transformer's forward pass, written once for all backends.
// Source: zhixuan-lin/forgetting-transformer, modeling_forgetting_transformer.py.
#pragma once

#include <cstdint>

#include "kernels/interface/ops.h"
#include "models/weights.h"

namespace fox {

// The buffers between the operations of a forward pass: at most R rows, of which L want logits.
// "residual dtype" as in weights.h, "activation dtype" as in kernels/interface/ops.h.
struct Activations {
  Activations(const FoxWeights& weights, Ops& ops, int64_t max_rows, int64_t max_logit_rows);
  // Bytes that the constructor will allocate.
  static size_t Bytes(const ModelConfig& config, DType residual_dtype, const Ops& ops,
                      int64_t max_rows, int64_t max_logit_rows);

  int64_t max_rows, max_logit_rows;
  DType dtype;        // activation dtype
  Buffer x;           // [R, D] residual dtype: residual stream
  Buffer projection;  // [R, ProjectionColumns::stride] activation dtype
  Buffer o;           // [R, Q] activation dtype: attention output, normed and gated
  Buffer h;           // [R, I] activation dtype: inner activations of the MLP
  Buffer last;        // [L, D] residual dtype: rows that want logits
  Buffer logits;      // [L, V] residual dtype
};

// Counters of one forward pass, with an entry for each sequence of the batch. The pass adds to
// them; null: not counted.
struct ForwardCounters {
  int64_t* blocks_total = nullptr;
  int64_t* blocks_pruned = nullptr;
  int64_t* pages_evicted = nullptr;
  double* max_log_evicted_mass = nullptr;  // raised, not added to
  LostMass* lost_mass = nullptr;           // set
};

// Not thread-safe: one pass at a time.
class FoxModel {
 public:
  // All must outlive the model.
  FoxModel(const FoxWeights& weights, Ops& ops, Activations& activations)
      : weights_(weights), ops_(ops), act_(activations) {}

  // Appends the batch's tokens to their sequences in `kv`, evicting what `acp` licenses. Leaves the
  // residual stream of every row for Logits.
  void Forward(const BatchView& batch, AcpMode acp, const PagedKv& kv,
               const ForwardCounters& counters, Stream stream);

  // Logits [count, V] (residual dtype) of rows `rows` (readable by the backend) of the batch of the
  // last pass. `decode_rows`: count, then the rows ascend, or 0, then count > 1 and rows may be
  // there twice; see LinearParams.
  // Valid until the next call. REQUIRES: count <= Activations::max_logit_rows.
  MatrixView Logits(const BatchView& batch, const int64_t* rows, int64_t count, int64_t decode_rows,
                    Stream stream);

 private:
  const LayerWeights& Layer(int n) const { return weights_.layers[static_cast<size_t>(n)]; }
  RmsNorm Norm(const Buffer& weight) const { return {weight.data(), weights_.config.norm_eps}; }
  AppendParams AppendOf(int layer, const MatrixView& projection, AcpMode acp) const;
  AttentionParams AttentionOf(int layer, const MatrixView& projection, const MatrixView& out,
                              AcpMode acp, const ForwardCounters& counters) const;

  const FoxWeights& weights_;
  Ops& ops_;
  Activations& act_;
};

}  // namespace fox
