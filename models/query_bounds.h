// Bounds on the attention logits of one layer, derived from its weights alone: the constants of the
// certified bound and of the paper's bound (kernels/docs/acp.md 2a, 2c and 5). A query is bounded
// by the norm weights under QK-norm, by the caps of a model that has them, and by the query
// projection otherwise.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/interface/ops.h"
#include "models/checkpoint/checkpoint.h"

namespace fox {

// A QueryBound whose arrays are on the host. An empty array is a null pointer in view().
struct HostQueryBound {
  std::vector<float> diagonal;           // [H, d]
  std::vector<float> dense;              // [H, d, d]
  std::vector<float> linear;             // [H, d]
  std::vector<float> absolute;           // [H, d]
  std::vector<double> self_logit_bound;  // [H] B, by a key or the sink
  std::vector<double> max_logit_bound;   // [H] U
  std::vector<double> max_norm_product;  // [H]
  std::vector<double> log_max_value;     // [H] EvictParams's; empty without an output norm
  double scale = 1;
  // Clamp of log f for the layer: the loosest that any of its heads needs, so that the clamp never
  // changes an output of the model.
  double min_log_gate = -128;

  // Loosens the clamp as far as a head needs whose logits reach `largest_logit`.
  void LoosenClamp(double largest_logit);
  QueryBound view() const;
};

// `kv`: the type of keys and values in pages. `in_blocks`: the projection's inputs are rounded
// block by block, as in products with kQ8 and kQ4.
HostQueryBound MakeQueryBound(const ModelConfig& config, const LayerTensors& layer, DType kv,
                              bool in_blocks = false);

// A HostQueryBound copied to a backend's memory.
class DeviceQueryBound {
 public:
  DeviceQueryBound() = default;
  DeviceQueryBound(const HostQueryBound& host, Ops& ops);
  const QueryBound& view() const { return view_; }
  double min_log_gate() const { return min_log_gate_; }

 private:
  std::vector<Buffer> buffers_;
  QueryBound view_;
  double min_log_gate_ = -128;
};

// A copy of `bytes` in a backend's memory; an empty buffer if there are none.
Buffer Upload(std::span<const std::byte> bytes, Ops& ops);

}  // namespace fox
