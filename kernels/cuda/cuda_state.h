// CudaState, the state of CudaOps: the device's work space, the engines behind the operations, and
// the one way in which operations reach the stream. For cuda_ops.cc and for benchmarks of single
// kernels.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/beside_stream.h"
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

// Of the memory that kernels read before their waits, what may still be written when the next
// kernel starts (launch.h): by the kernels from the last one on that triggered after its wait.
class UnfinishedWrites {
 public:
  // To any memory.
  UnfinishedWrites() = default;
  static UnfinishedWrites None() {
    UnfinishedWrites none;
    none.any_ = false;
    return none;
  }
  // These and writes to the memory at `what`.
  UnfinishedWrites With(const void* what) const {
    UnfinishedWrites all = *this;
    if (!all.MayTouch(what)) all.written_.push_back(what);
    return all;
  }

  bool MayTouch(const void* what) const {
    return any_ || std::find(written_.begin(), written_.end(), what) != written_.end();
  }

 private:
  bool any_ = true;
  std::vector<const void*> written_;
};

struct CudaState {
  // `may_overlap` false: no kernel starts before the previous one has ended.
  explicit CudaState(bool may_overlap) : queue(device_error), overlaps(may_overlap) {
    if (!may_overlap) cuda::AllowOverlap(queue.cuda_stream(), false);
  }
  ~CudaState() { cuda::AllowOverlap(queue.cuda_stream(), true); }
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  // The wrapper of every operation. launch(cuda stream) enqueues it and gives the first error; it
  // is not called once the device has failed. Afterwards any memory may have unfinished writes: an
  // operation that knows its kernels' writes sets `unfinished`.
  template <typename Launch>
  void Enqueue(const char* what, Stream stream, const Launch& launch) {
    unfinished = {};
    const bool behind_join = std::exchange(joined, false), behind_mark = beside.marked();
    if (!device_error.ok()) return;
    const NvtxRange range(what);
    const auto on = stream == nullptr ? queue.cuda_stream() : static_cast<cudaStream_t>(stream);
    if (behind_join) cuda::AllowOverlap(on, false);
    device_error.Check(launch(on), what);
    if (behind_join) cuda::AllowOverlap(on, true);
    // A mark of BesideStream serves the next operation alone: if Run has not used the mark in that
    // operation, the mark is discarded here, because a later Run would not wait for the operation.
    if (behind_mark) beside.Forget();
  }

  // Upper bound on the attention tiles of a batch, known to the host.
  static int MaxTiles(const BatchView& batch) {
    return static_cast<int>(batch.num_rows / cuda::kTileRows + 2 * batch.num_seqs);
  }

  // True if the batch's decode attention runs beside the kernels of its prompts. Decode attention
  // then has a block less on each SM, to leave these kernels room, so it runs there only where more
  // than kLeastBlocks of its blocks fit an SM.
  bool AttendsBeside(const BatchView& batch) const {
    constexpr int kLeastBlocks = 3;
    return overlaps && batch.num_decodes > 0 && !batch.all_decodes() &&
           resident_blocks > kLeastBlocks * multiprocessors;
  }

  cuda::DeviceError device_error;
  cuda::CudaQueue queue;
  const bool overlaps;
  // True if the next operation is the first one behind beside.Join. That operation starts only when
  // all kernels in front of it have ended: kernels of prefill rows, which trigger before their
  // wait, would let it start while kernels before them still run (launch.h says what that did to a
  // product).
  bool joined = false;
  std::string name;
  bool hopper = false;
  cuda::LinearEngine linear;
  UnfinishedWrites unfinished;
  std::vector<Buffer> buffers;  // memory that `schedule` points into
  cuda::StepSchedule schedule;
  cuda::BesideStream beside{device_error};  // behind `buffers`, which its work uses
  int multiprocessors = 0;
  int resident_blocks = 0;  // cuda::DecodeBlocks
  int64_t wide_bytes = 0;   // for schedule.wide
};

}  // namespace fox
