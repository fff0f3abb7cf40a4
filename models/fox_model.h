// FoxModel: the Forgetting Transformer's forward pass, written once for all backends.
// Source: zhixuan-lin/forgetting-transformer, modeling_forgetting_transformer.py.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/ops.h"
#include "models/weights.h"

namespace fox {

// Scratch of one forward pass; R rows at most, of which L want logits. "residual dtype" as in
// weights.h, "activation dtype" as in kernels/ops.h.
struct Activations {
  Activations(const FoxWeights& weights, Ops& ops, int64_t max_rows, int64_t max_logit_rows);
  // What the constructor will allocate.
  static size_t Bytes(const ModelConfig& config, DType residual_dtype, const Ops& ops,
                      int64_t max_rows, int64_t max_logit_rows);

  int64_t max_rows, max_logit_rows;
  DType activation_dtype;
  Buffer x;           // [R, D] residual dtype: residual stream
  Buffer projection;  // [R, ProjectionColumns::stride] activation dtype
  Buffer o;           // [R, D] activation dtype: attention output, normed and gated
  Buffer norm_sums;   // NormedRows::sums of x
  Buffer gate_up;     // [R, 2I] activation dtype; [R, I] where products gate
  Buffer scratch;     // [R, max(D, I)] activation dtype: rows on their way into a product, those of
                      // NormedRows, too; [R, D] where products gate
  Buffer last;        // [L, D] residual dtype: rows that want logits
  Buffer logits;      // [L, V] residual dtype
};

// Counters of one forward pass, by sequence of the batch, added to; null: not counted.
struct ForwardCounters {
  int64_t* blocks_total = nullptr;
  int64_t* blocks_pruned = nullptr;
  int64_t* pages_evicted = nullptr;
  double* max_log_evicted_mass = nullptr;  // raised, not added to
};

// Not thread-safe: one pass at a time.
class FoxModel {
 public:
  // All must outlive the model.
  FoxModel(const FoxWeights& weights, Ops& ops, Activations& activations)
      : weights_(weights), ops_(ops), act_(activations) {}

  // Appends the batch's tokens to their sequences in `kv`, evicting what `acp` licenses, and
  // returns logits [num_logit_rows, V] (residual dtype) of batch rows `logit_rows`, which ascend,
  // valid until the next pass.
  MatrixView Forward(const BatchView& batch, const int64_t* logit_rows, int64_t num_logit_rows,
                     AcpMode acp, const PagedKv& kv, const ForwardCounters& counters,
                     Stream stream);

 private:
  // Rows [first, first + count) of a step, which its products take in one call.
  struct RowGroup {
    int64_t first, count;
    bool decodes;
  };

  std::array<RowGroup, 2> GroupsOf(const BatchView& batch) const;
  bool TakesNormsApart(const RowGroup& rows) const;
  bool FusesNorms(const RowGroup& rows) const;
  void Project(int layer, const RowGroup& rows, Stream stream);
  void Attend(int layer, const BatchView& batch, AcpMode acp, const PagedKv& kv,
              const ForwardCounters& counters, Stream stream);
  void MixAndMlp(int layer, const RowGroup& rows, Stream stream);
  LinearParams Normed(const RowGroup& rows, const Buffer& norm, const PackedWeight& weight,
                      bool behind) const;
  NormedRows Left(const RowGroup& rows, const Buffer& norm) const;
  MatrixView Residual(const RowGroup& rows) const;
  MatrixView Attended(const RowGroup& rows) const;
  MatrixView Projection(const RowGroup& rows) const;
  InputTransform Norm(const Buffer& weight, int64_t rows) const;
  OutputTransform OutputTransformOf(const LayerWeights& w, const MatrixView& projection) const;
  Activation HiddenActivation() const;
  InputTransform GatedAct(int64_t rows) const;
  MatrixView Scratch(int64_t rows, int64_t cols) const;

  const FoxWeights& weights_;
  Ops& ops_;
  Activations& act_;
};

}  // namespace fox
