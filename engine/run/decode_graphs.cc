// DecodeGraphs: buckets and shapes of decode steps, capture and replay.
#include "engine/run/decode_graphs.h"

#include <algorithm>

#include "kernels/interface/batch_view.h"

namespace fox {

int64_t DecodeBucket(int64_t seqs) {
  if (seqs <= 2) return std::max<int64_t>(seqs, 1);
  if (seqs <= 4) return 4;
  const int64_t multiple = seqs <= 64 ? 8 : 32;
  return (seqs + multiple - 1) / multiple * multiple;
}

std::vector<DecodeShape> DecodeShapes(int64_t max_num_seqs, int64_t max_model_len) {
  std::vector<DecodeShape> shapes;
  for (int64_t seqs = 1; seqs <= max_num_seqs; ++seqs) {
    const int64_t bucket = DecodeBucket(seqs);
    if (!shapes.empty() && shapes.back().bucket == bucket) continue;
    if (bucket == 1) shapes.push_back({bucket, true});
    if (bucket > 1 || max_model_len > kSmallBatchTokens) shapes.push_back({bucket, false});
  }
  return shapes;
}

MatrixView DecodeGraphs::Run(const DecodeShape& shape, const Step& step) {
  Captured& captured = graphs_[shape];
  if (captured.graph != nullptr) {
    captured.graph->Launch(queue_.stream());
    return captured.logits;
  }
  if (!captured.warm) {
    captured.warm = true;
    return step();
  }
  captured.graph = queue_.Capture(queue_.stream(), [&] { captured.logits = step(); });
  // Null: capturing failed, and queue_.error() says why.
  if (captured.graph != nullptr) captured.graph->Launch(queue_.stream());
  return captured.logits;
}

}  // namespace fox
