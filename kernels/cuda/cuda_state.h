// CudaState, the state of CudaOps: the device's work space, the engines behind the operations, and
// the one way in which operations reach the stream. For cuda_ops.cc and for benchmarks of single
// kernels.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/cuda_queue.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/batch_view.h"

namespace fox {

// Marks the operations that the host enqueues during its lifetime, for Nsight. Costs a few
// nanoseconds when no profiler listens.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

// The memory that kernels may still be writing when the next kernel starts (launch.h): the next
// kernel may read everything else before its wait.
class UnfinishedWrites {
 public:
  // Any memory.
  UnfinishedWrites() = default;
  // The memory at two addresses alone; null: none.
  explicit UnfinishedWrites(const void* first, const void* second = nullptr)
      : any_(false), first_(first), second_(second) {}

  bool MayTouch(const void* what) const { return any_ || what == first_ || what == second_; }

 private:
  bool any_ = true;
  const void *first_ = nullptr, *second_ = nullptr;
};

struct CudaState {
  // `overlaps` false: no kernel starts before the previous one has ended.
  explicit CudaState(bool overlaps) : queue(device_error) {
    if (!overlaps) cuda::AllowOverlap(queue.cuda_stream(), false);
  }
  ~CudaState() { cuda::AllowOverlap(queue.cuda_stream(), true); }
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  // The wrapper of every operation. launch(cuda stream) enqueues it and gives the first error; it
  // is not called once the device has failed. An operation that knows its kernels' unfinished
  // writes sets `unfinished` afterwards.
  template <typename Launch>
  void Enqueue(const char* what, Stream stream, const Launch& launch) {
    unfinished = {};
    if (!device_error.ok()) return;
    const NvtxRange range(what);
    device_error.Check(
        launch(stream == nullptr ? queue.cuda_stream() : static_cast<cudaStream_t>(stream)), what);
  }

  // Upper bound on the attention tiles of a batch, known to the host.
  static int MaxTiles(const BatchView& batch) {
    return static_cast<int>(batch.num_rows / cuda::kTileRows + 2 * batch.num_seqs);
  }

  cuda::DeviceError device_error;
  cuda::CudaQueue queue;
  std::string name;
  bool hopper = false;
  cuda::LinearEngine linear;
  UnfinishedWrites unfinished;
  std::vector<Buffer> buffers;  // memory that `schedule` points into
  cuda::StepSchedule schedule;
  int resident_blocks = 0;  // cuda::DecodeBlocks
  int64_t wide_bytes = 0;   // for schedule.wide
};

}  // namespace fox
