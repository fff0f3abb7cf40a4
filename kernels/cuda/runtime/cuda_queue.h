// CudaQueue: the DeviceQueue of one GPU, and the memory of its first error. A CUDA context does not
// recover from an error, so the first one is kept and everything after it is skipped.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "kernels/interface/device_queue.h"

namespace fox::cuda {

// The first error of a device. One thread.
class DeviceError {
 public:
  // Keeps the first failure. True if there was none so far, including this call.
  bool Check(cudaError_t status, const char* what);
  bool ok() const { return text_.empty(); }
  const char* text() const { return ok() ? nullptr : text_.c_str(); }

 private:
  std::string text_;
};

class CudaQueue : public DeviceQueue {
 public:
  explicit CudaQueue(DeviceError& device_error);
  ~CudaQueue() override;

  Stream stream() const override { return stream_; }
  cudaStream_t cuda_stream() const { return stream_; }
  Buffer AllocatePinned(size_t bytes) override;
  void CopyPinned(const void* from, size_t bytes, void* to, Stream stream) override;
  std::unique_ptr<Event> MakeEvent() override;
  std::unique_ptr<CopyStream> MakeCopyStream() override;
  std::unique_ptr<Graph> Capture(Stream stream, const std::function<void()>& work) override;
  const char* error() const override { return device_error_.text(); }
  void Probe() override;
  size_t free_bytes() const override;
  size_t total_bytes() const override;

 private:
  DeviceError& device_error_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace fox::cuda
