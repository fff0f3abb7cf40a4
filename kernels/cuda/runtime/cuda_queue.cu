// Streams, events and graphs of the CUDA runtime behind DeviceQueue. See cuda_queue.h.
#include <chrono>

#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/cuda_queue.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

// A step's arrays are small: a kernel copies them while a stream would still be switching to the
// copy engine and back.
constexpr size_t kKernelBytes = size_t{256} << 10;
constexpr int kThreads = 256;
// The time for which a wait polls the device before it blocks: to wake a thread takes some 20 us,
// which only a short wait notices, and a polling thread takes a processor from the server's others.
constexpr auto kPollTime = std::chrono::microseconds(50);

__global__ void __launch_bounds__(kThreads) CopyKernel(const uint4* from, uint4* to, int count) {
  TriggerDependents();
  WaitOnDependencies();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count) to[i] = __ldcv(from + i);
}

cudaError_t Copy(const void* from, size_t bytes, void* to, cudaStream_t stream) {
  const size_t unaligned =
      (reinterpret_cast<size_t>(from) | reinterpret_cast<size_t>(to) | bytes) % sizeof(uint4);
  if (bytes > kKernelBytes || unaligned != 0) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  }
  const auto count = static_cast<unsigned>(bytes / sizeof(uint4));
  return Launch(CopyKernel, dim3((count + kThreads - 1) / kThreads), dim3(kThreads), 0, stream,
                static_cast<const uint4*>(from), static_cast<uint4*>(to), static_cast<int>(count));
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(DeviceError& device_error) : device_error_(device_error) {
    device_error_.Check(
        cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
        "create an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }

  void Record(Stream stream) override {
    if (device_error_.ok()) {
      device_error_.Check(cudaEventRecord(event_, static_cast<cudaStream_t>(stream)),
                          "record an event");
    }
  }
  void Wait() override {
    if (!device_error_.ok()) return;
    const auto end = std::chrono::steady_clock::now() + kPollTime;
    cudaError_t status = cudaErrorNotReady;
    while (status == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
      status = cudaEventQuery(event_);
    }
    if (status == cudaErrorNotReady) status = cudaEventSynchronize(event_);
    device_error_.Check(status, "wait for the device");
  }

 private:
  DeviceError& device_error_;
  cudaEvent_t event_ = nullptr;
};

// Keeps no error: DeviceError has one thread, whose next call meets the device's error itself.
class CudaCopyStream : public CopyStream {
 public:
  explicit CudaCopyStream(DeviceError& device_error) {
    device_error.Check(cudaGetDevice(&device_), "find the device");
    device_error.Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                       "create a stream");
  }
  ~CudaCopyStream() override { cudaStreamDestroy(stream_); }

  bool Begin(const void* from, size_t bytes, void* to) override {
    return stream_ != nullptr && cudaSetDevice(device_) == cudaSuccess &&
           cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_) == cudaSuccess;
  }
  bool Wait() override {
    return stream_ != nullptr && cudaSetDevice(device_) == cudaSuccess &&
           cudaStreamSynchronize(stream_) == cudaSuccess;
  }

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, DeviceError& device_error)
      : graph_(graph), device_error_(device_error) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void Launch(Stream stream) override {
    if (device_error_.ok()) {
      device_error_.Check(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream)),
                          "launch a graph");
    }
  }

 private:
  cudaGraphExec_t graph_;
  DeviceError& device_error_;
};

}  // namespace

bool DeviceError::Check(cudaError_t status, const char* what) {
  if (status != cudaSuccess && ok()) {
    text_ = std::string("cannot ") + what + ": " + cudaGetErrorString(status);
  }
  return ok();
}

CudaQueue::CudaQueue(DeviceError& device_error) : device_error_(device_error) {
  device_error_.Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                      "create a stream");
}

CudaQueue::~CudaQueue() { cudaStreamDestroy(stream_); }

Buffer CudaQueue::AllocatePinned(size_t bytes) {
  void* data = nullptr;
  if (!device_error_.Check(cudaMallocHost(&data, bytes), "allocate pinned memory")) {
    // The caller goes on until it looks at error(); it must not write to null.
    return {::operator new(bytes), bytes, [](void* at, size_t) { ::operator delete(at); }};
  }
  return {data, bytes, [](void* at, size_t) { cudaFreeHost(at); }};
}

void CudaQueue::CopyPinned(const void* from, size_t bytes, void* to, Stream stream) {
  if (!device_error_.ok()) return;
  device_error_.Check(Copy(from, bytes, to, static_cast<cudaStream_t>(stream)), "copy");
}

std::unique_ptr<Event> CudaQueue::MakeEvent() { return std::make_unique<CudaEvent>(device_error_); }

std::unique_ptr<CopyStream> CudaQueue::MakeCopyStream() {
  return std::make_unique<CudaCopyStream>(device_error_);
}

std::unique_ptr<Graph> CudaQueue::Capture(Stream stream, const std::function<void()>& work) {
  if (!device_error_.ok()) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  if (!device_error_.Check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal),
                           "capture a graph")) {
    return nullptr;
  }
  work();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (device_error_.Check(cudaStreamEndCapture(on, &graph), "capture a graph")) {
    device_error_.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate a graph");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (exec == nullptr) return nullptr;
  return std::make_unique<CudaGraph>(exec, device_error_);
}

void CudaQueue::Probe() {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status != cudaErrorNotReady) device_error_.Check(status, "go on");
}

size_t CudaQueue::free_bytes() const {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

size_t CudaQueue::total_bytes() const {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? total : 0;
}

}  // namespace fox::cuda
