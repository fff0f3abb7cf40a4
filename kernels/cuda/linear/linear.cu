// Which product for which rows. On Hopper: decode rows by small_batch_gemm.cu (1..4) and
// cluster_gemm.cu, which give the same bits, prefill rows by cublas_gemm.cc and, where products are
// gated, prefill_gemm.cu. Elsewhere their number decides: small_batch_gemm.cu, skinny_gemm.cu,
// cublas_gemm.cc.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/cluster_gemm.h"
#include "kernels/cuda/linear/cublas_gemm.h"
#include "kernels/cuda/linear/input_transform.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/prefill_gemm.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/linear/small_batch_gemm.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kBiasThreads = 256;

// out += bias, after a product of cuBLASLt's. bf16 outputs are rounded twice.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    AddBias(const float* bias, int64_t cols, T* out, int64_t stride) {
  TriggerDependents();
  WaitOnDependencies();
  T* row = out + blockIdx.x * stride;
  for (int64_t c = threadIdx.x; c < cols; c += kBiasThreads) {
    row[c] = static_cast<T>(static_cast<float>(row[c]) + bias[c]);
  }
}

template <typename T>
cudaError_t LaunchAddBias(const float* bias, const MatrixView& out, cudaStream_t stream) {
  return Launch(AddBias<T>, dim3(static_cast<unsigned>(out.rows)), dim3(kBiasThreads), 0, stream,
                bias, out.cols, static_cast<T*>(out.data), out.row_stride);
}

int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  const bool found = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return found ? value : 0;
}

}  // namespace

// Both kinds of products use the same workspace: they never run at the same time, being on one
// stream. The arrival_counters stay apart, for they must be zero between launches.
struct LinearEngine::State {
  DeviceLimits limits{DeviceAttribute(cudaDevAttrMultiProcessorCount),
                      DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
  void* workspace = nullptr;
  int32_t* arrival_counter = nullptr;
  cudaError_t error = cudaSuccess;  // the constructor's
  CublasGemm cublas;
  const bool has_decode_family = HasClusterGemm() && HasPrefillGemm();

  State() : error(Allocate()), cublas(workspace, kWorkspaceBytes) {}
  ~State() {
    cudaFree(workspace);
    cudaFree(arrival_counter);
  }

  SkinnyWorkspace skinny() const {
    return {limits.multiprocessors, static_cast<float*>(workspace), arrival_counter};
  }

 private:
  cudaError_t Allocate() {
    if (limits.multiprocessors <= 0) return cudaErrorNoDevice;
    const auto partial_floats = SkinnyWorkspace::PartialFloats(limits.multiprocessors);
    FOX_CHECK(static_cast<size_t>(partial_floats) * sizeof(float) <= kWorkspaceBytes);
    const size_t arrival_counter_bytes =
        static_cast<size_t>(limits.multiprocessors) * sizeof(int32_t);
    cudaError_t result = cudaMalloc(&workspace, kWorkspaceBytes);
    if (result == cudaSuccess) result = cudaMalloc(&arrival_counter, arrival_counter_bytes);
    if (result == cudaSuccess) result = cudaMemset(arrival_counter, 0, arrival_counter_bytes);
    // The caller's stream may not wait for the default one.
    if (result == cudaSuccess) result = cudaDeviceSynchronize();
    return result;
  }
};

LinearEngine::LinearEngine() : state_(std::make_unique<State>()) {}
LinearEngine::~LinearEngine() = default;

bool LinearEngine::Drains(const LinearParams& params) const {
  return params.transform.kind == kDrainingKind && RunsGemv(params);
}

bool LinearEngine::has_decode_family() const { return state_->has_decode_family; }

bool LinearEngine::RunsGemv(const LinearParams& params) const {
  const bool fused = !params.takes.rows.empty() || !params.leaves.rows.empty();
  const bool decodes = params.decodes || !has_decode_family();
  return decodes && !fused && GemvTakes(params, state_->limits);
}

// A norm taken apart in front of a product that does not do it by itself.
cudaError_t LinearEngine::RunApart(const LinearParams& params, cudaStream_t stream) {
  const InputTransform& norm = params.transform;
  const MatrixView& in = params.in;
  const int64_t sums = in.rows * NormedRows::SumsOf(in.cols);
  FOX_CHECK(norm.kind == InputTransform::Kind::kRmsNorm && !norm.scratch.empty());
  FOX_CHECK(static_cast<size_t>(sums) * sizeof(float) <= kWorkspaceBytes);
  LinearParams taking = params;
  taking.transform = {};
  taking.takes = {norm.scratch.Rows(0, in.rows), static_cast<float*>(state_->workspace),
                  norm.weight, norm.eps};
  if (const cudaError_t error = TakeApart(in, taking.takes, stream)) return error;
  return Run(taking, stream);
}

cudaError_t LinearEngine::Run(const LinearParams& params, cudaStream_t stream) {
  constexpr int kSkinnyStep = 16;  // columns that the own kernels multiply at a time
  if (state_->error != cudaSuccess) return state_->error;
  const MatrixView& in = params.in;
  const MatrixView& out = params.out;
  const InputTransform& transform = params.transform;
  const DeviceWeight& weight = OnDevice(params.weight);
  FOX_CHECK(in.rows == out.rows && weight.out() > 0 && weight.in() > 0);
  FOX_CHECK(out.cols == (params.gated ? weight.out() / 2 : weight.out()));
  const bool takes = !params.takes.rows.empty(), leaves = !params.leaves.rows.empty();
  FOX_CHECK(!params.gated || has_decode_family());
  FOX_CHECK(!(takes || leaves || transform.apart) || (has_decode_family() && params.decodes));
  FOX_CHECK(!params.gated || (params.bias == nullptr && !params.accumulate && !leaves));
  FOX_CHECK(!takes || transform.kind == InputTransform::Kind::kNone);
  FOX_CHECK(weight.in() % 8 == 0 && reinterpret_cast<uintptr_t>(weight.data()) % 16 == 0);
  FOX_CHECK(out.dtype == DType::kF32 || (out.dtype == DType::kBF16 && !params.accumulate));
  if (in.rows == 0) return cudaSuccess;
  if (RunsGemv(params)) return SmallBatchGemm(params, state_->limits, stream);
  if (transform.apart) return RunApart(params, stream);
  MatrixView x = takes ? params.takes.rows.Rows(0, in.rows) : in;
  if (!takes && (transform.kind != InputTransform::Kind::kNone || in.dtype != DType::kBF16)) {
    FOX_CHECK(!transform.scratch.empty() && transform.scratch.cols == weight.in() &&
              transform.scratch.rows >= in.rows);
    x = transform.scratch.Rows(0, in.rows);
    if (const cudaError_t error = TransformRows(in, transform, x, stream)) return error;
  }
  FOX_CHECK(x.cols == weight.in() && x.row_stride % 8 == 0 &&
            reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
  if (has_decode_family()) {
    if (params.decodes) return ClusterGemm(x, params, state_->limits.multiprocessors, stream);
    if (params.gated) return PrefillGemm(x, params, state_->limits.multiprocessors, stream);
    FOX_CHECK(in.rows > 1);  // cuBLASLt may compute one alone in another order
  } else if (in.rows <= kMaxSkinnyRows && weight.in() % kSkinnyStep == 0) {
    return SkinnyGemm(x, params, state_->skinny(), stream);
  }
  const cudaError_t error = state_->cublas.Multiply(x, params, stream);
  const auto* bias = static_cast<const float*>(params.bias);
  if (error != cudaSuccess || bias == nullptr) return error;
  return out.dtype == DType::kF32 ? LaunchAddBias<float>(bias, out, stream)
                                  : LaunchAddBias<__nv_bfloat16>(bias, out, stream);
}

}  // namespace fox::cuda
