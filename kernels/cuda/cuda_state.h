// What CudaOps holds: the device's work space, the engines behind the operations, and the one way
// in which operations reach the stream. For cuda_ops.cc and for benchmarks of single kernels.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/cuda_queue.h"
#include "kernels/cuda/runtime/nvtx_range.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox {

// What the operation that was enqueued last says about all that was enqueued before it. When a
// kernel may start while earlier ones still run (launch.h), this is what it may rely on.
class Previous {
 public:
  // Nothing: any of them may still be running.
  Previous() = default;
  // A product, one kernel that triggers after its wait: when the next kernel starts, this one alone
  // may still be running, and writes `output` alone.
  static Previous Draining(const void* output) { return Previous(output, -1); }
  // AppendDecode: when the next kernel starts, only it and the projection may still be running, and
  // write nothing but the projection, the rows' own pages and the running state of `layer`.
  static Previous Appending(int layer) { return Previous(nullptr, layer); }

  bool drained_but(const void* output) const { return output != nullptr && output == output_; }
  bool appended(int layer) const { return layer == layer_; }

 private:
  Previous(const void* output, int layer) : output_(output), layer_(layer) {}

  const void* output_ = nullptr;
  int layer_ = -1;
};

struct CudaOps::State {
  explicit State(const CudaOptions& cuda_options);
  ~State();

  // The wrapper of every operation. launch(cuda stream) enqueues it and gives the first error; it
  // is not called once the device has failed. `leaves`: what is known when it has run. Nothing that
  // `previous` says holds while it runs: who needs it asks before.
  template <typename Launch>
  void Enqueue(const char* what, Stream stream, const Launch& launch, Previous leaves = {}) {
    if (!device_error.ok()) return;
    const cuda::NvtxRange range(what);
    previous = {};
    const cudaStream_t on =
        stream == nullptr ? queue.cuda_stream() : static_cast<cudaStream_t>(stream);
    if (device_error.Check(launch(on), what)) previous = leaves;
  }

  // Upper bound on the attention tiles of a batch, known to the host.
  static int MaxTiles(const BatchView& batch) {
    return static_cast<int>(batch.num_rows / cuda::kTileRows + 2 * batch.num_seqs);
  }

  cudaError_t Prefill(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                      cudaStream_t on);

  CudaOptions options;
  cuda::DeviceError device_error;
  cuda::CudaQueue queue;
  std::string name;
  bool hopper = false;
  cuda::LinearEngine linear;
  Previous previous;
  std::vector<Buffer> buffers;  // behind `work`
  cuda::StepSchedule schedule;
  int32_t* first_visible_pages = nullptr;  // work.window of the layers that have some
};

}  // namespace fox
