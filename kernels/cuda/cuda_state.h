// What CudaOps holds: the device's work space and the engines behind the operations. For
// cuda_ops.cc and for benchmarks of single kernels.
#pragma once

#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/cuda_queue.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox {

struct CudaOps::State {
  explicit State(const CudaOptions& cuda_options) : options(cuda_options), queue(device_error) {}

  // For every operation that enqueues kernels.
  cudaStream_t On(Stream stream) {
    drained_output = nullptr;
    return stream == nullptr ? queue.cuda_stream() : static_cast<cudaStream_t>(stream);
  }
  // Upper bound on the attention tiles of a batch, known to the host.
  static int MaxTiles(const BatchView& batch) {
    return static_cast<int>(batch.num_rows / cuda::kTileRows + 2 * batch.num_seqs);
  }

  CudaOptions options;
  cuda::DeviceError device_error;
  cuda::CudaQueue queue;
  std::string name;
  bool hopper = false;
  cuda::LinearEngine linear;
  // What the operation that was enqueued last writes, if it was a product whose kernel triggers
  // after its wait (launch.h).
  const void* drained_output = nullptr;
  std::vector<Buffer> buffers;  // behind `work`
  cuda::StepSchedule schedule;
  int32_t* first_visible_pages = nullptr;  // work.window of the layers that have some
};

}  // namespace fox
