// DecodeGraphs: captures the decode steps of a backend with a queue, once per shape, and replays
// them. Graphs change when work is launched and never its results.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/core/matrix_view.h"
#include "kernels/interface/device_queue.h"

namespace fox {

// The launches of a decode step depend on its shape alone; everything else is read from fixed
// addresses.
struct DecodeShape {
  int64_t bucket = 1;  // sequences, padding included
  bool small = true;   // BatchView::small

  // clang-tidy 14 takes the operator's own zero for a null pointer.
  auto operator<=>(const DecodeShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The smallest batch that decode steps of `seqs` sequences are padded to: 1, 2, 4, then multiples
// of 8 up to 64, then of 32.
int64_t DecodeBucket(int64_t seqs);

// Every shape of the decode steps of up to `max_num_seqs` sequences, the smallest bucket first.
std::vector<DecodeShape> DecodeShapes(int64_t max_num_seqs, int64_t max_model_len);

// Only the thread that calls the queue may call this.
class DecodeGraphs {
 public:
  // Enqueues one step and returns its logits.
  using Step = std::function<MatrixView()>;

  // `queue` must outlive the graphs.
  explicit DecodeGraphs(DeviceQueue& queue) : queue_(queue) {}

  // Runs a step of the shape and returns where its logits will be. The first `step` of a shape runs
  // directly, so that later ones allocate nothing; the second is captured, and replayed from then
  // on.
  MatrixView Run(const DecodeShape& shape, const Step& step);

 private:
  struct Captured {
    bool warm = false;  // ran once
    std::unique_ptr<Graph> graph;
    MatrixView logits;
  };

  DeviceQueue& queue_;
  std::map<DecodeShape, Captured> graphs_;
};

}  // namespace fox
