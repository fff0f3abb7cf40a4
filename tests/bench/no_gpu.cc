// gpu_machine.h and `fox-bench attention` in a build without CUDA: they return an error.
#include "tests/bench/bench_session.h"
#include "tests/bench/gpu_machine.h"

namespace fox {
namespace {

absl::Status NoGpu() {
  return absl::UnimplementedError("this build has no CUDA backend; see ./run build cuda");
}

}  // namespace

absl::StatusOr<Summary> MeasureOnGpu(Ops&, int, int, const std::function<void(int)>&) {
  return NoGpu();
}
absl::StatusOr<Summary> MeasureGpuRead(Ops&, int64_t, int) { return NoGpu(); }
nlohmann::ordered_json GpuFacts() { return nlohmann::ordered_json::object(); }
absl::Status BenchAttention(BenchSession&) { return NoGpu(); }

}  // namespace fox
