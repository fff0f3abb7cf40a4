// Events, graphs and reads of a CUDA device.
#include "tests/bench/gpu_machine.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/random_values.h"
#include "tests/bench/read_memory.h"

namespace fox {
namespace {

// A CUDA event for timing. Its calls ignore errors: the queue's error() reports them later.
class TimingEvent {
 public:
  TimingEvent() { cudaEventCreate(&event_); }
  TimingEvent(TimingEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimingEvent& operator=(TimingEvent&&) = delete;
  ~TimingEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void Record(cudaStream_t stream) const { cudaEventRecord(event_, stream); }
  void Wait() const { cudaEventSynchronize(event_); }
  double SecondsSince(const TimingEvent& start) const {
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, start.event_, event_);
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaStream_t StreamOf(Ops& ops) { return static_cast<cudaStream_t>(ops.queue()->stream()); }

absl::Status HealthOf(Ops& ops) {
  const char* error = ops.queue()->error();
  if (error == nullptr && cudaPeekAtLastError() == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("device: ", error != nullptr ? error : cudaGetErrorString(cudaGetLastError())));
}

}  // namespace

absl::StatusOr<Summary> MeasureOnGpu(Ops& ops, int calls, int samples,
                                     const std::function<void(int call)>& work) {
  const cudaStream_t stream = StreamOf(ops);
  for (int call = 0; call < calls; ++call) work(call);
  const auto graph = ops.queue()->Capture(stream, [&] {
    for (int call = 0; call < calls; ++call) work(call);
  });
  if (graph == nullptr) {
    absl::Status status = HealthOf(ops);
    return status.ok() ? absl::InternalError("the device captured no graph") : status;
  }
  // All replays are enqueued before the first one is waited for, so none waits for the host.
  std::vector<TimingEvent> marks(static_cast<size_t>(samples) + 1);
  graph->Launch(stream);
  marks[0].Record(stream);
  for (size_t i = 1; i < marks.size(); ++i) {
    graph->Launch(stream);
    marks[i].Record(stream);
  }
  marks.back().Wait();
  if (absl::Status status = HealthOf(ops); !status.ok()) return status;
  std::vector<double> seconds;
  for (size_t i = 1; i < marks.size(); ++i) {
    seconds.push_back(marks[i].SecondsSince(marks[i - 1]) / calls);
  }
  return Summarize(std::move(seconds));
}

absl::StatusOr<Summary> MeasureGpuRead(Ops& ops, int64_t bytes, int samples) {
  const auto count = static_cast<size_t>(bytes);
  std::vector<BFloat16> values(count / sizeof(BFloat16));
  FillNormal(values.data(), static_cast<int64_t>(values.size()), 3, 0, 1);
  const Buffer data = ops.Allocate(count), sink = ops.Allocate(16);
  ops.CopyToDevice(values.data(), values.size() * sizeof(BFloat16), data.data(), nullptr);
  return MeasureOnGpu(ops, 4, samples, [&](int) {
    cuda::ReadMemory(data.data(), count, sink.as<uint32_t>(), StreamOf(ops));
  });
}

nlohmann::ordered_json GpuFacts() {
  cudaDeviceProp properties{};
  int device = 0, driver = 0, runtime = 0;
  cudaGetDevice(&device);
  cudaGetDeviceProperties(&properties, device);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return absl::StrCat(v / 1000, ".", v % 1000 / 10); };
  return {{"name", properties.name},
          {"multiprocessors", properties.multiProcessorCount},
          {"l2_bytes", properties.l2CacheSize},
          {"memory_bytes", properties.totalGlobalMem},
          {"driver_cuda", version(driver)},
          {"runtime_cuda", version(runtime)}};
}

}  // namespace fox
