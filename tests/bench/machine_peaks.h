// MachinePeaks: the machine's bandwidth of streaming reads and its rate of large matrix products
// through the backend, measured in the same run as the work that is compared with them.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/interface/ops.h"
#include "tests/bench/measurement.h"

namespace fox {

struct MachinePeaks {
  Summary read_bytes_per_second;
  Summary flops_per_second;
};

// Reads a buffer of `bytes`, which should exceed the last-level cache, and multiplies rows by a
// [size, size] weight of type `dtype`.
absl::StatusOr<MachinePeaks> MeasurePeaks(Ops& ops, DType dtype, int64_t bytes, int64_t size);

}  // namespace fox
