// One table of answers behind a lock, and what each thread has read of it, so that a launch takes
// no lock. See kernel_attributes.h.
#include "kernels/cuda/runtime/kernel_attributes.h"

#include <functional>
#include <mutex>
#include <unordered_map>

namespace fox::cuda {
namespace {

// Zeros if there is none for the device.
struct Code {
  int architecture, registers;
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
template <typename T>
using Table = std::unordered_map<Question, T, HashOfQuestion>;

// The answer of ask(&answer) for `kernel` on the current device, asked until it succeeds once. All
// threads get the same answer: the driver may fail for one of them and not for another. Each call
// site's lambda is a type `Ask` of its own and so has its own table.
template <typename T, typename Ask>
cudaError_t AskOnce(const void* kernel, T* answer, const Ask& ask) {
  static std::mutex mutex;
  static Table<T> table;
  thread_local Table<T> known;
  Question question{-1, kernel};  // -1 stays where there is no device: `ask` gives the error
  static_cast<void>(cudaGetDevice(&question.device));
  if (const auto found = known.find(question); found != known.end()) {
    *answer = found->second;
    return cudaSuccess;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = table.find(question);
  if (found == table.end()) {
    T value{};
    if (const cudaError_t error = ask(&value); error != cudaSuccess) return error;
    found = table.emplace(question, value).first;
  }
  known.emplace(question, found->second);
  *answer = found->second;
  return cudaSuccess;
}

Code CodeOf(const void* kernel) {
  Code code{};
  static_cast<void>(AskOnce(kernel, &code, [&](Code* answer) {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess) {
      *answer = {attributes.ptxVersion, attributes.numRegs};
    } else {
      static_cast<void>(cudaGetLastError());  // no code for this device: an answer
    }
    return cudaSuccess;
  }));
  return code;
}

}  // namespace

int CompiledArchitecture(const void* kernel) { return CodeOf(kernel).architecture; }

bool TakesRegisters(const void* kernel, int registers) {
  return CodeOf(kernel).registers >= registers;
}

cudaError_t AllowDynamicSmem(const void* kernel, int bytes) {
  int allowed = 0;
  return AskOnce(kernel, &allowed, [&](int*) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  });
}

cudaError_t ResidentBlocks(const void* kernel, int threads, size_t bytes, int* blocks) {
  return AskOnce(kernel, blocks, [&](int* resident) {
    int sms = 0, per_sm = 0;
    cudaError_t error = CountMultiprocessors(&sms);
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, bytes);
    }
    *resident = sms * per_sm;
    return error;
  });
}

cudaError_t ResidentClusters(const void* kernel, int threads, size_t bytes, int size,
                             int* clusters) {
  return AskOnce(kernel, clusters, [&](int* resident) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(size);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(size));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(resident, kernel, &config);
  });
}

cudaError_t CountMultiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace fox::cuda
