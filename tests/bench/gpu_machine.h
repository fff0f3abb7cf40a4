// Measurements of a GPU: times of its work and its read bandwidth. `ops` must be the CUDA
// backend's. In a build without CUDA all functions return an error (no_gpu.cc).
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "kernels/interface/ops.h"
#include "tests/bench/measurement.h"

namespace fox {

// Seconds of one call of `work`: it is captured `calls` times into a graph, which is replayed once
// to warm up and then `samples` times between events. `work` gets the call's number.
absl::StatusOr<Summary> MeasureOnGpu(Ops& ops, int calls, int samples,
                                     const std::function<void(int call)>& work);

// Seconds of reading a buffer of `bytes`.
absl::StatusOr<Summary> MeasureGpuRead(Ops& ops, int64_t bytes, int samples);

// Driver, runtime and clocks of the device, for the report.
nlohmann::ordered_json GpuFacts();

}  // namespace fox
