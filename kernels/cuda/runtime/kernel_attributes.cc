// One table of answers a thread, so that a launch takes no lock. See kernel_attributes.h.
#include "kernels/cuda/runtime/kernel_attributes.h"

#include <functional>
#include <optional>
#include <unordered_map>

namespace fox::cuda {
namespace {

// Zeros if there is none for the device.
struct Code {
  int architecture, registers;
};

struct Known {
  std::optional<Code> code;
  bool smem_allowed = false;
  std::optional<int> resident_blocks;
};

struct Question {
  int device;
  const void* kernel;
  bool operator==(const Question&) const = default;
};
struct HashOfQuestion {
  size_t operator()(const Question& question) const {
    return std::hash<const void*>()(question.kernel) + static_cast<size_t>(question.device);
  }
};

// The calling thread's answers about `kernel` on the current device.
Known& AnswersFor(const void* kernel) {
  thread_local std::unordered_map<Question, Known, HashOfQuestion> table;
  int device = -1;  // stays where there is none: what is asked then gives the error
  static_cast<void>(cudaGetDevice(&device));
  return table[{device, kernel}];
}

Code CodeOf(const void* kernel) {
  Known& known = AnswersFor(kernel);
  if (!known.code) {
    cudaFuncAttributes attributes{};
    const bool told = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
    if (!told) static_cast<void>(cudaGetLastError());  // no code for this device: an answer
    known.code = told ? Code{attributes.ptxVersion, attributes.numRegs} : Code{0, 0};
  }
  return *known.code;
}

}  // namespace

int CompiledArchitecture(const void* kernel) { return CodeOf(kernel).architecture; }

bool TakesRegisters(const void* kernel, int registers) {
  return CodeOf(kernel).registers >= registers;
}

cudaError_t AllowDynamicSmem(const void* kernel, int bytes) {
  Known& known = AnswersFor(kernel);
  if (known.smem_allowed) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  known.smem_allowed = error == cudaSuccess;
  return error;
}

cudaError_t ResidentBlocks(const void* kernel, int threads, int* blocks) {
  Known& known = AnswersFor(kernel);
  if (!known.resident_blocks) {
    int sms = 0, per_sm = 0;
    cudaError_t error = CountMultiprocessors(&sms);
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, 0);
    }
    if (error != cudaSuccess) return error;
    known.resident_blocks = sms * per_sm;
  }
  *blocks = *known.resident_blocks;
  return cudaSuccess;
}

cudaError_t CountMultiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace fox::cuda
