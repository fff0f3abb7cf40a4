// MachinePeaks: what this machine can do, measured in the same run as everything it is compared
// with: reading memory in a stream, and multiplying large matrices through the backend.
#pragma once

#include "kernels/ops.h"
#include "tests/bench/measurement.h"

namespace fox {

struct MachinePeaks {
  Summary read_bytes_per_second;
  Summary flops_per_second;
};

// Reads a buffer of `bytes` again and again with all threads. Larger than the last-level cache: a
// stream from memory; smaller: what a working set of that size can be read at.
Summary MeasureReadBandwidth(int64_t bytes, int repeat);

// Multiplies 512 rows by a [size, size] weight of random numbers; `wide`: of the activations.
Summary MeasureMatmul(Ops& ops, DType wide, int64_t size, int repeat);

}  // namespace fox
