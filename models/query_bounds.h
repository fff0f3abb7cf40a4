// Bounds on the attention logits of one layer, derived from its weights alone: the constants of the
// certified bound and of the paper's bound (kernels/docs/acp.md 2a, 2c and 5). With QK-norm the
// norm weights bound a query, with caps those do, without either the query projection does.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/interface/ops.h"
#include "models/checkpoint/checkpoint.h"

namespace fox {

// A QueryBound with its arrays on the host; null where empty.
struct HostQueryBound {
  std::vector<float> diagonal;           // [H, d]
  std::vector<float> dense;              // [H, d, d]
  std::vector<float> linear;             // [H, d]
  std::vector<float> absolute;           // [H, d]
  std::vector<double> self_logit_bound;  // [H] B, by a key or the sink
  std::vector<double> max_logit_bound;   // [H] U
  std::vector<double> max_norm_product;  // [H]
  double scale = 1;
  // Clamp of log f for the layer: the loosest that one of its heads needs, so that it never changes
  // what the model computes.
  double min_log_gate = -128;

  // For a head whose logits reach `largest_logit`.
  void LoosenClamp(double largest_logit);
  QueryBound view() const;
};

// `kv`: the type of pages.
HostQueryBound MakeQueryBound(const ModelConfig& config, const LayerTensors& layer, DType kv);

// The same in a backend's memory.
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

// A copy in a backend's memory; an empty buffer of nothing.
Buffer Upload(std::span<const std::byte> bytes, Ops& ops);

}  // namespace fox
