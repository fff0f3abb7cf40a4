// Streams, events and graphs of the CUDA runtime behind DeviceQueue. See cuda_queue.h.
#include "kernels/cuda/cuda_queue.h"

namespace fox::cuda {
namespace {

class CudaFence : public Fence {
 public:
  explicit CudaFence(Health& health) : health_(health) {
    health_.Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create an event");
  }
  ~CudaFence() override { cudaEventDestroy(event_); }

  void Record(Stream stream) override {
    if (health_.ok()) {
      health_.Check(cudaEventRecord(event_, static_cast<cudaStream_t>(stream)), "record an event");
    }
  }
  void Wait() override {
    if (health_.ok()) health_.Check(cudaEventSynchronize(event_), "wait for the device");
  }

 private:
  Health& health_;
  cudaEvent_t event_ = nullptr;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, Health& health) : graph_(graph), health_(health) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void Launch(Stream stream) override {
    if (health_.ok()) {
      health_.Check(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream)), "launch a graph");
    }
  }

 private:
  cudaGraphExec_t graph_;
  Health& health_;
};

}  // namespace

bool Health::Check(cudaError_t status, const char* what) {
  if (status != cudaSuccess && ok()) {
    text_ = std::string("cannot ") + what + ": " + cudaGetErrorString(status);
  }
  return ok();
}

CudaQueue::CudaQueue(Health& health) : health_(health) {
  health_.Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
}

CudaQueue::~CudaQueue() { cudaStreamDestroy(stream_); }

Buffer CudaQueue::AllocatePinned(size_t bytes) {
  void* data = nullptr;
  if (!health_.Check(cudaMallocHost(&data, bytes), "allocate pinned memory")) {
    // The caller goes on until it looks at error(); it must not write to null.
    return {::operator new(bytes), bytes, [](void* at, size_t) { ::operator delete(at); }};
  }
  return {data, bytes, [](void* at, size_t) { cudaFreeHost(at); }};
}

void CudaQueue::CopyToPinned(const void* device, size_t bytes, void* pinned, Stream stream) {
  if (!health_.ok()) return;
  health_.Check(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost,
                                static_cast<cudaStream_t>(stream)),
                "copy from the device");
}

std::unique_ptr<Fence> CudaQueue::MakeFence() { return std::make_unique<CudaFence>(health_); }

std::unique_ptr<Graph> CudaQueue::Capture(Stream stream, const std::function<void()>& work) {
  if (!health_.ok()) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  if (!health_.Check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal),
                     "capture a graph")) {
    return nullptr;
  }
  work();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (health_.Check(cudaStreamEndCapture(on, &graph), "capture a graph")) {
    health_.Check(cudaGraphInstantiate(&exec, graph, 0), "instantiate a graph");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (exec == nullptr) return nullptr;
  return std::make_unique<CudaGraph>(exec, health_);
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
