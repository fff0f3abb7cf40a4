// MachinePeaks: what this machine can do, measured in the same run as everything it is compared
// with: reading memory in a stream, and multiplying large matrices through the backend.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "tests/bench/measurement.h"

namespace fox {

struct MachinePeaks {
  Summary read_bytes_per_second;
  Summary flops_per_second;
};

// Reads a buffer of `bytes`, larger than the last-level cache, and multiplies rows by a [size,
// size] weight. `dtype`: of the backend's weights.
absl::StatusOr<MachinePeaks> MeasurePeaks(Ops& ops, DType dtype, int64_t bytes, int64_t size);

// Seconds of one call of `work`, which gets the call's number, averaged over `calls`; all are made
// once to warm up. On a GPU they are a graph (MeasureOnGpu).
absl::StatusOr<Summary> MeasureCalls(Ops& ops, int calls, int samples,
                                     const std::function<void(int call)>& work);

// Random activations in the backend's memory.
Buffer RandomRows(Ops& ops, DType dtype, int64_t count, uint64_t seed);

}  // namespace fox
