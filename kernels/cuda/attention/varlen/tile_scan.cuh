// Scans over the list of tiles, restarted at each sequence, by one block for each query head: a
// thread has a run of neighbouring tiles, so that one block scan serves any number of them. The
// order of the sums is fixed.
#pragma once

#include <cub/block/block_scan.cuh>

#include "kernels/cuda/attention/varlen/state.h"

namespace fox::cuda {

inline constexpr int kScanThreads = 1024;

// The tiles [first, end) of the `index`-th run.
struct TileRun {
  int first, end;
};

__device__ __forceinline__ TileRun RunOfTiles(int num_tiles, int index) {
  const int size = (num_tiles + kScanThreads - 1) / kScanThreads;
  return {min(num_tiles, index * size), min(num_tiles, (index + 1) * size)};
}

// The sum of a run from its last restart on.
template <typename T>
struct Segment {
  T value;
  bool restarts;
};

// add(value, value) over the runs before this thread's, back to the last restart; `none` if there
// is none. By all threads of the block.
template <typename T, typename Add>
__device__ T ExclusiveSegmentScan(const Segment<T>& own, const T& none, const Add& add) {
  using Scan = cub::BlockScan<Segment<T>, kScanThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  Segment<T> before;
  Scan(storage).ExclusiveScan(
      own, before, Segment<T>{none, false}, [&](const Segment<T>& a, const Segment<T>& b) {
        return b.restarts ? b : Segment<T>{add(a.value, b.value), a.restarts};
      });
  __syncthreads();  // `storage` may be used again
  return before.value;
}

}  // namespace fox::cuda
