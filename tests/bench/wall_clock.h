// WallClock: seconds of operations on backends whose calls return when the work is done.
#pragma once

#include <utility>

#include "engine/trace/timed_ops.h"
#include "tests/bench/measurement.h"

namespace fox {

class WallClock : public OpClock {
 public:
  void Start() override { start_ = Now(); }
  void Stop(OpKind kind) override { seconds_[kind] += Now() - start_; }
  OpSeconds Take() override { return std::exchange(seconds_, {}); }

 private:
  double start_ = 0;
  OpSeconds seconds_;
};

}  // namespace fox
