// FoxModel: the Forgetting Transformer's forward pass, written once for all backends.
// Source: zhixuan-lin/forgetting-transformer, modeling_forgetting_transformer.py.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "models/weights.h"

namespace fox {

// Scratch of one forward pass; R rows at most, of which L want logits. "wide" as in weights.h.
struct Activations {
  Activations(const FoxWeights& weights, Ops& ops, int64_t max_rows, int64_t max_logit_rows);

  int64_t max_rows, max_logit_rows;
  Buffer x;           // [R, D] residual stream
  Buffer h;           // [R, D] normed input of a block
  Buffer projection;  // [R, ProjectionColumns::total]
  Buffer o;           // [R, D] attention output
  Buffer gate_up;     // [R, 2I]
  Buffer act;         // [R, I]
  Buffer last;        // [L, D] rows that want logits
  Buffer logits;      // [L, V]
};

// Counters of one forward pass, by sequence of the batch, added to; null: not counted.
struct ForwardCounters {
  int64_t* blocks_total = nullptr;
  int64_t* blocks_skipped = nullptr;
  int64_t* pages_evicted = nullptr;
};

// Not thread-safe: one pass at a time.
class FoxModel {
 public:
  // All must outlive the model.
  FoxModel(const FoxWeights& weights, Ops& ops, Activations& activations)
      : weights_(weights), ops_(ops), act_(activations) {}

  // Appends the batch's tokens to their sequences in `kv`, evicting what `acp` licenses, and
  // returns logits [num_logit_rows, V] (wide) of batch rows `logit_rows`, valid until the next
  // pass.
  MatrixView Forward(const BatchView& batch, const int64_t* logit_rows, int64_t num_logit_rows,
                     AcpMode acp, const PagedKv& kv, const ForwardCounters& counters,
                     Stream stream);

 private:
  void Attend(int layer, const BatchView& batch, AcpMode acp, const PagedKv& kv,
              const ForwardCounters& counters, Stream stream);

  const FoxWeights& weights_;
  Ops& ops_;
  Activations& act_;
};

}  // namespace fox
