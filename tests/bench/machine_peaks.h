// MachinePeaks: what this machine can do, measured in the same run as everything it is compared
// with: reading memory in a stream, and multiplying large matrices through the backend.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/interface/ops.h"
#include "tests/bench/measurement.h"

namespace fox {

struct MachinePeaks {
  Summary read_bytes_per_second;
  Summary flops_per_second;
};

// Reads a buffer of `bytes`, larger than the last-level cache, and multiplies rows by a [size,
// size] weight. `dtype`: of the backend's weights.
absl::StatusOr<MachinePeaks> MeasurePeaks(Ops& ops, DType dtype, int64_t bytes, int64_t size);

}  // namespace fox
