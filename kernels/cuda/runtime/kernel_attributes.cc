// One table of answers behind one lock. See kernel_attributes.h.
#include "kernels/cuda/runtime/kernel_attributes.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace fox::cuda {
namespace {

struct Known {
  std::optional<int> architecture;
  bool smem_allowed = false;
  std::optional<int> resident_blocks;
};

// The answers about `kernel` on the current device, while the lock is held.
class Answers {
 public:
  explicit Answers(const void* kernel) : lock_(mutex_) {
    error_ = cudaGetDevice(&device_);
    known_ = &table_[{device_, kernel}];
  }

  cudaError_t error() const { return error_; }
  int device() const { return device_; }
  Known* operator->() const { return known_; }

 private:
  static std::mutex mutex_;
  static std::map<std::pair<int, const void*>, Known> table_;

  std::lock_guard<std::mutex> lock_;
  int device_ = -1;
  cudaError_t error_;
  Known* known_;
};

std::mutex Answers::mutex_;
std::map<std::pair<int, const void*>, Known> Answers::table_;

}  // namespace

int CompiledArchitecture(const void* kernel) {
  const Answers known(kernel);
  if (!known->architecture) {
    cudaFuncAttributes attributes{};
    const bool told = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
    if (!told) static_cast<void>(cudaGetLastError());  // no code for this device: an answer
    known->architecture = told ? attributes.ptxVersion : 0;
  }
  return *known->architecture;
}

cudaError_t AllowDynamicSmem(const void* kernel, int bytes) {
  const Answers known(kernel);
  if (known->smem_allowed) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  known->smem_allowed = error == cudaSuccess;
  return error;
}

cudaError_t ResidentBlocks(const void* kernel, int threads, int* blocks) {
  const Answers known(kernel);
  if (!known->resident_blocks) {
    int sms = 0, per_sm = 0;
    cudaError_t error = known.error();
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, known.device());
    }
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, 0);
    }
    if (error != cudaSuccess) return error;
    known->resident_blocks = sms * per_sm;
  }
  *blocks = *known->resident_blocks;
  return cudaSuccess;
}

}  // namespace fox::cuda
