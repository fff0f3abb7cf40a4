// Which product for which rows. Decode rows: on Hopper small_batch_gemm.cu for 1 to 4 and
// cluster_gemm.cu for more, which give the same bits; elsewhere small_batch_gemm.cu in passes up to
// kMaxPassedRows. Prefill rows: cublas_gemm.cc or, on Hopper with a gate, prefill_gemm.cu; weights
// in 8 bits are widened to bf16 for the call. On Hopper prefill_fp8_gemm.cu multiplies up to
// kMaxPrefillsByCodes rows by the codes as they lie, with the same bits.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/cublas_gemm.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {
namespace {

constexpr size_t kCublasBytes = size_t{32} << 20;
constexpr int kBiasThreads = 256;
// A step of a 7B shape with 1,000 rows of a prompt is 9% faster by codes than by the widened W,
// with 1,500 rows 2% (one NVIDIA H200).
constexpr int64_t kMaxPrefillsByCodes = 1536;

// out += bias, after a product of cuBLASLt's. bf16 outputs are rounded twice.
__global__ void __launch_bounds__(kBiasThreads) AddBias(const float* bias, const MatrixView out) {
  TriggerDependents();
  WaitOnDependencies();
  for (int64_t c = threadIdx.x; c < out.cols; c += kBiasThreads) {
    const int64_t at = blockIdx.x * out.row_stride + c;
    if (out.dtype == DType::kF32) {
      static_cast<float*>(out.data)[at] += bias[c];
    } else {
      auto& y = static_cast<__nv_bfloat16*>(out.data)[at];
      y = __float2bfloat16_rn(__bfloat162float(y) + bias[c]);
    }
  }
}

int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  const bool found = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return found ? value : 0;
}

void Check(const LinearParams& p) {
  const PackedWeight& weight = p.weight;
  FOX_CHECK(weight.out() > 0 && weight.in() > 0 && weight.in() % 8 == 0);
  FOX_CHECK(p.in.rows == p.out.rows && p.decode_rows >= 0 && p.decode_rows <= p.in.rows);
  FOX_CHECK(p.in.cols == weight.in() && p.out.cols == (p.gate ? weight.out() / 2 : weight.out()));
  FOX_CHECK(p.in.dtype == (p.norm ? DType::kF32 : DType::kBF16));
  FOX_CHECK(reinterpret_cast<uintptr_t>(p.in.data) % 16 == 0);
  FOX_CHECK(p.in.row_stride * static_cast<int64_t>(SizeOf(p.in.dtype)) % 16 == 0);
  FOX_CHECK(p.out.dtype == DType::kF32 || (p.out.dtype == DType::kBF16 && !p.accumulate));
  FOX_CHECK(!p.gate || (p.out.dtype == DType::kBF16 && p.bias == nullptr && !p.accumulate));
  FOX_CHECK(!p.next_norm || (p.accumulate && !p.norm));
}

int64_t WidenedBytes(const DeviceWeight& weight) {
  return PaddedRows(weight.out()) * weight.in() * static_cast<int64_t>(SizeOf(DType::kBF16));
}

constexpr int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

struct LinearEngine::State {
  const DeviceLimits limits{DeviceAttribute(cudaDevAttrMultiProcessorCount),
                            DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                            HasClusterGemm()};
  const bool hopper = limits.overlaps;
  void* cublas_workspace = nullptr;
  const cudaError_t error = limits.multiprocessors > 0 ? cudaMalloc(&cublas_workspace, kCublasBytes)
                                                       : cudaErrorNoDevice;
  CublasGemm cublas{cublas_workspace, kCublasBytes};

  // Scratch, reserved: normed rows, the sums of a deferred norm and, on devices whose products have
  // no gate, both halves of rows before the gate.
  struct Sizes {
    int64_t normed, sums, halves;  // bytes
  } reserved{};
  std::byte* scratch = nullptr;
  // A weight of 8 bits, widened to bf16 for one call.
  void* widened = nullptr;
  int64_t widened_bytes = 0;

  // The rows whose normed form, its scale deferred, is at the begin of the scratch; without data:
  // there are none.
  MatrixView deferred_rows;
  const void* deferred_weight = nullptr;  // of the norm

  bool triggers_late = false;

  ~State() {
    cudaFree(cublas_workspace);
    cudaFree(scratch);
    cudaFree(widened);
  }

  Sizes SizesOf(const Workload& load) const {
    const int64_t hidden = load.hidden_size, bf16 = SizeOf(DType::kBF16);
    return {
        Aligned(load.max_rows * hidden * bf16),
        hopper ? Aligned(load.max_rows * DeferredNorm::SumsOf(hidden) * SizeOf(DType::kF32)) : 0,
        hopper ? 0 : load.max_rows * 2 * load.intermediate_size * bf16};
  }

  static MatrixView RowsAt(void* data, int64_t rows, int64_t cols) {
    return {data, DType::kBF16, rows, cols, cols};
  }
  // Scratch for the norm of `rows` rows of the call, from row `first` on.
  MatrixView Normed(int64_t first, int64_t rows, int64_t cols) const {
    FOX_CHECK((first + rows) * cols * static_cast<int64_t>(SizeOf(DType::kBF16)) <=
              reserved.normed);
    return RowsAt(scratch, first + rows, cols).Rows(first, rows);
  }
  DeferredNorm Deferred(int64_t rows, int64_t cols) const {
    FOX_CHECK(rows * DeferredNorm::SumsOf(cols) * static_cast<int64_t>(SizeOf(DType::kF32)) <=
              reserved.sums);
    return {Normed(0, rows, cols), reinterpret_cast<float*>(scratch + reserved.normed)};
  }
  MatrixView Halves(int64_t rows, int64_t cols) const {
    FOX_CHECK(rows * cols * static_cast<int64_t>(SizeOf(DType::kBF16)) <= reserved.halves);
    return RowsAt(scratch + reserved.normed + reserved.sums, rows, cols);
  }

  // True if decode rows are passes of SmallBatchGemm.
  bool Passes(const LinearParams& p) const {
    const int64_t most = SmallBatchRows(p.weight.in(), limits);
    // On Hopper cluster_gemm.cu is faster for more decode rows.
    if (hopper) return p.decode_rows <= std::min(most, kFewRows);
    return most > 0 && p.decode_rows <= kMaxPassedRows;
  }

  cudaError_t MultiplyInPasses(const LinearParams& p, cudaStream_t stream) {
    const int64_t rows = p.in.rows, most = SmallBatchRows(p.weight.in(), limits);
    triggers_late = p.norm && rows <= most;
    for (int64_t first = 0; first < rows; first += most) {
      const LinearParams pass = p.Rows(first, std::min(most, rows - first));
      if (const cudaError_t result = SmallBatchGemm(pass, limits, stream)) return result;
    }
    return cudaSuccess;
  }

  cudaError_t Cluster(const LinearParams& p, cudaStream_t stream) {
    DeferredNorm x{p.in}, next;
    if (p.norm) {
      x = Deferred(p.in.rows, p.in.cols);
      if (deferred_rows.data != p.in.data || deferred_rows.rows != p.in.rows ||
          deferred_weight != p.norm->weight) {
        if (const cudaError_t result = DeferNorm(p.in, *p.norm, x, stream)) return result;
        deferred_rows = p.in;
        deferred_weight = p.norm->weight;
      }
    }
    if (p.next_norm) {
      next = Deferred(p.out.rows, p.out.cols);
      deferred_rows = p.out;
      deferred_weight = p.next_norm->weight;
    }
    return ClusterGemm(x, p, next, limits.multiprocessors, stream);
  }

  // True if prefill rows are multiplied by codes of W as they lie.
  bool MultipliesCodes(const LinearParams& p) const {
    return hopper && OnDevice(p.weight).fp8().rows > 0 && p.in.rows <= kMaxPrefillsByCodes;
  }

  // The product of the call's rows from `first` on, which are prefill rows.
  cudaError_t MultiplyPrefills(const LinearParams& p, int64_t first, cudaStream_t stream) {
    const DeviceWeight& weight = OnDevice(p.weight);
    if (weight.fp8().rows > 0 && !MultipliesCodes(p)) {
      FOX_CHECK(WidenedBytes(weight) <= widened_bytes);
      if (const cudaError_t result = WidenWeight(weight, widened, stream)) return result;
      const DeviceWeight whole(weight.out(), weight.in(), {widened, 0, [](void*, size_t) {}});
      return MultiplyPrefills(
          {p.in, p.norm, whole, p.bias, p.gate, p.accumulate, p.next_norm, p.decode_rows, p.out},
          first, stream);
    }
    MatrixView x = p.in;
    if (p.norm) {
      x = Normed(first, p.in.rows, p.in.cols);
      if (deferred_rows.rows * deferred_rows.cols > first * x.cols) deferred_rows = {};
      if (const cudaError_t result = NormRows(p.in, *p.norm, x, stream)) return result;
    }
    if (MultipliesCodes(p)) return PrefillFp8Gemm(x, p, limits.multiprocessors, stream);
    if (hopper && p.gate) return PrefillGemm(x, p, limits.multiprocessors, stream);
    FOX_CHECK(!hopper || x.rows > 1);  // cuBLASLt may compute one alone in another order
    const MatrixView y = p.gate ? Halves(x.rows, p.weight.out()) : p.out;
    cudaError_t result = cublas.Multiply(x, weight, p.accumulate, y, stream);
    if (result == cudaSuccess && p.gate) result = GateRows(y, *p.gate, p.out, stream);
    if (result != cudaSuccess || p.bias == nullptr) return result;
    return Launch(AddBias, dim3(static_cast<unsigned>(y.rows)), dim3(kBiasThreads), 0, stream,
                  static_cast<const float*>(p.bias), y);
  }
};

LinearEngine::LinearEngine() : state_(std::make_unique<State>()) {}
LinearEngine::~LinearEngine() = default;

int64_t LinearEngine::WorkspaceBytes(const Workload& load) const {
  const State::Sizes sizes = state_->SizesOf(load);
  return sizes.normed + sizes.sums + sizes.halves;
}

cudaError_t LinearEngine::Reserve(const Workload& load) {
  State& s = *state_;
  if (s.error != cudaSuccess) return s.error;
  if (const cudaError_t result = s.cublas.created(); result != cudaSuccess) return result;
  cudaFree(s.scratch);
  s.scratch = nullptr;
  s.deferred_rows = {};
  s.reserved = s.SizesOf(load);
  const auto bytes = static_cast<size_t>(WorkspaceBytes(load));
  return bytes == 0 ? cudaSuccess : cudaMalloc(&s.scratch, bytes);
}

cudaError_t LinearEngine::Run(const LinearParams& params, cudaStream_t stream) {
  State& s = *state_;
  if (s.error != cudaSuccess) return s.error;
  Check(params);
  s.triggers_late = false;
  Forget(params.out.data);
  const bool passes = s.Passes(params);
  const int64_t rows = params.in.rows, decodes = s.hopper || passes ? params.decode_rows : 0;
  if (decodes > 0) {
    const LinearParams first = params.Rows(0, decodes);
    const cudaError_t result =
        passes ? s.MultiplyInPasses(first, stream) : s.Cluster(first, stream);
    if (result != cudaSuccess) return result;
  }
  if (decodes == rows) return cudaSuccess;
  s.triggers_late = false;
  return s.MultiplyPrefills(params.Rows(decodes, rows - decodes), decodes, stream);
}

cudaError_t LinearEngine::ReserveWidened(const DeviceWeight& weight) {
  State& s = *state_;
  const int64_t bytes = WidenedBytes(weight);
  if (s.error != cudaSuccess || weight.fp8().rows == 0 || bytes <= s.widened_bytes) return s.error;
  cudaFree(s.widened);
  s.widened = nullptr;
  const cudaError_t result = cudaMalloc(&s.widened, static_cast<size_t>(bytes));
  s.widened_bytes = result == cudaSuccess ? bytes : 0;
  return result;
}

bool LinearEngine::triggers_late() const { return state_->triggers_late; }

void LinearEngine::Forget(const void* rows) {
  if (state_->deferred_rows.data == rows) state_->deferred_rows = {};
}

}  // namespace fox::cuda
