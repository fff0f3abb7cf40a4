// BesideStream: a second stream of the step, on which decode attention runs while the kernels of
// the step's prompts run on the first. Decode attention waits for memory most of the time, the
// prompts' kernels do not.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/cuda_queue.h"

namespace fox::cuda {

// One thread. Calls return the first error.
class BesideStream {
 public:
  explicit BesideStream(DeviceError& device_error) {
    device_error.Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                       "create a stream");
    for (cudaEvent_t* event : {&mark_, &done_}) {
      device_error.Check(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                         "create an event");
    }
  }
  // Waits for the stream's work, which a failed launch between Run and Join leaves behind.
  ~BesideStream() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    cudaEventDestroy(done_);
    cudaEventDestroy(mark_);
    cudaStreamDestroy(stream_);
  }
  BesideStream(const BesideStream&) = delete;
  BesideStream& operator=(const BesideStream&) = delete;

  // Marks a point of `on`: what Run launches next beside `on` begins when the work that `on` has
  // now is done, without waiting for the work that the same operation enqueues behind the mark.
  cudaError_t Mark(cudaStream_t on) {
    const cudaError_t error = cudaEventRecord(mark_, on);
    if (error == cudaSuccess) marked_ = on;
    return error;
  }
  bool marked() const { return marked_ != nullptr; }
  // Discards a mark that no Run has used.
  void Forget() { marked_ = nullptr; }

  // launch(stream) enqueues work that begins behind the mark on `on`, or if there is none when all
  // of `on`'s work is done. Join has to follow.
  template <typename Launch>
  cudaError_t Run(cudaStream_t on, const Launch& launch) {
    cudaError_t error = marked() && marked_ == on ? cudaSuccess : Mark(on);
    Forget();
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_, mark_);
    if (error == cudaSuccess) error = launch(stream_);
    return error == cudaSuccess ? cudaEventRecord(done_, stream_) : error;
  }
  // `on`'s next work begins when the work of the last Run is done.
  cudaError_t Join(cudaStream_t on) { return cudaStreamWaitEvent(on, done_); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t mark_ = nullptr, done_ = nullptr;
  cudaStream_t marked_ = nullptr;  // null: there is no mark
};

}  // namespace fox::cuda
