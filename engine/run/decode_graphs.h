// DecodeGraphs: decode steps on a backend with a queue, captured once per shape and then replayed.
// Graphs change when work is launched, never what is computed.
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

// What a decode step launches depends on this; all else it reads from fixed addresses.
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

// One thread calls, the one that calls the queue.
class DecodeGraphs {
 public:
  // Enqueues one step and returns its logits.
  using Step = std::function<MatrixView()>;

  // `queue` must outlive the graphs.
  explicit DecodeGraphs(DeviceQueue& queue) : queue_(queue) {}

  // Runs a step of that shape and returns where its logits will be. `step` runs as it is the first
  // time, so that capturing allocates nothing, and is captured the second time.
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
