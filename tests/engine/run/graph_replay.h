// GraphReplay: for benchmarks only: the last decode graph of a ModelRunner again and again.
#pragma once

#include "engine/run/model_runner.h"

namespace fox {

class GraphReplay {
 public:
  // Replays the graph of the last step `count` times in a row and waits. Leaves the cache in
  // disorder. FailedPrecondition: that step was not captured.
  static absl::Status Run(ModelRunner& runner, int count) {
    Graph* const graph = runner.graphs_ == nullptr ? nullptr : runner.graphs_->last_;
    if (graph == nullptr) return absl::FailedPreconditionError("no decode graph was captured");
    for (int i = 0; i < count; ++i) graph->Launch(runner.stream_);
    runner.idle_.back()->Mark();
    runner.idle_.back()->Wait();
    return runner.Health();
  }
};

}  // namespace fox
