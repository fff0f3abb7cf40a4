// cuBLASLt thinks in columns: a row-major [r, c] matrix is its column-major [c, r] one. So the
// product is y^T [out, rows] = (W^T)^T x^T, with W^T [in, out] and x^T [in, rows] as they lie.
#include "kernels/cuda/linear/cublas_gemm.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox::cuda {
namespace {

// Prefill has ever new numbers of rows, and choosing an algorithm takes the host 1.5 ms, so all
// numbers of rows with the same next multiple of kRowsOfChoice share a choice. Beyond kMaxShapes
// shapes all choices are forgotten.
constexpr int64_t kRowsOfChoice = 64;
constexpr size_t kMaxShapes = 4096;
constexpr int64_t kManyRows = 2048;

cudaError_t ErrorOf(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return cudaSuccess;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return cudaErrorMemoryAllocation;
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? cudaErrorNotSupported : cudaErrorUnknown;
}

// The largest power of two, at most 256, that divides the address.
int64_t AlignmentOf(const void* p) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<int64_t>(address & (~address + 1));
}

// cuBLASLt's algorithms are tilings of a few kinds of kernels.
int KindOf(const cublasLtMatmulAlgo_t& algorithm) {
  int kind = -1;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &kind, sizeof(kind),
                                       &written);
  return kind;
}

}  // namespace

// cuBLASLt's descriptors of one call.
struct CublasGemm::Layouts {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, out;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // the first failure

  Layouts(const MatrixView& x_view, const DeviceWeight& w, const MatrixView& out_view) {
    const auto keep = [this](cublasStatus_t result) {
      if (status == CUBLAS_STATUS_SUCCESS) status = result;
    };
    const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t type = out_view.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    keep(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    keep(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)));
    keep(cublasLtMatrixLayoutInit(&weight, CUDA_R_16BF, u(w.in()), u(w.out()), w.in()));
    keep(cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, u(w.in()), u(x_view.rows), x_view.row_stride));
    keep(cublasLtMatrixLayoutInit(&out, type, u(w.out()), u(out_view.rows), out_view.row_stride));
  }
};

CublasGemm::CublasGemm(void* workspace, size_t workspace_bytes)
    : created_(ErrorOf(cublasLtCreate(&handle_))),
      workspace_(workspace),
      workspace_bytes_(workspace_bytes) {}

CublasGemm::~CublasGemm() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

// The heuristic's algorithms for a product, the fastest first; fewer than there is room for: all.
cublasStatus_t CublasGemm::Ask(Layouts& layouts, const Shape& shape,
                               std::vector<cublasLtMatmulHeuristicResult_t>* found) {
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasStatus_t status = cublasLtMatmulPreferenceInit(&preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value));
    }
  };
  const auto alignment = [&](size_t i) { return static_cast<uint32_t>(shape[i]); };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_));
  // Columns are not split: sums of parts may be rounded to y's type before they are added.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(8));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(7));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(9));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(9));
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoGetHeuristic(handle_, &layouts.operation, &layouts.weight,
                                            &layouts.x, &layouts.out, &layouts.out, &preference,
                                            static_cast<int>(found->size()), found->data(), &count);
  }
  found->resize(static_cast<size_t>(count));
  if (status == CUBLAS_STATUS_SUCCESS && count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  return status;
}

cublasStatus_t CublasGemm::Choose(MatrixView x, const DeviceWeight& weight, MatrixView out,
                                  const Shape& shape, cublasLtMatmulAlgo_t* algorithm) {
  const auto known = algorithms_.find(shape);
  if (known != algorithms_.end()) {
    *algorithm = known->second;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (algorithms_.size() >= kMaxShapes) algorithms_.clear();
  x.rows = out.rows = shape[0];
  Layouts layouts(x, weight, out);  // the memory behind its pointers is not read
  if (layouts.status != CUBLAS_STATUS_SUCCESS) return layouts.status;
  // Few rows may be given an algorithm of another kind, with another order of sums. All take the
  // kind of many.
  Shape many = shape;
  many[0] = kManyRows;
  int kind = 0;
  if (shape != many) {
    cublasLtMatmulAlgo_t theirs;
    const cublasStatus_t status = Choose(x, weight, out, many, &theirs);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    kind = KindOf(theirs);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  for (const size_t candidates : {size_t{1}, size_t{64}}) {
    found.resize(candidates);
    const cublasStatus_t status = Ask(layouts, shape, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const auto same = std::find_if(found.begin(), found.end(), [&](const auto& result) {
      return shape == many || KindOf(result.algo) == kind;
    });
    *algorithm = same == found.end() ? found.front().algo : same->algo;
    if (same != found.end()) break;
  }
  algorithms_.emplace(shape, *algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cudaError_t CublasGemm::Multiply(const MatrixView& x, const DeviceWeight& weight, bool accumulate,
                                 const MatrixView& out, cudaStream_t stream) {
  if (created_ != cudaSuccess) return created_;
  FOX_CHECK(x.dtype == DType::kBF16 && x.cols == weight.in() && x.rows == out.rows);
  FOX_CHECK(out.cols == weight.out() && weight.fp8().rows == 0);
  Layouts layouts(x, weight, out);
  if (layouts.status != CUBLAS_STATUS_SUCCESS) return ErrorOf(layouts.status);
  Shape shape = {0,
                 weight.out(),
                 weight.in(),
                 x.row_stride,
                 out.row_stride,
                 out.dtype == DType::kF32,
                 accumulate,
                 AlignmentOf(x.data),
                 AlignmentOf(weight.data()),
                 AlignmentOf(out.data)};
  const float one = 1, beta = accumulate ? 1.0f : 0.0f;
  const auto multiply_as = [&](int64_t rows) {
    shape[0] = rows;
    cublasLtMatmulAlgo_t algorithm;
    const cublasStatus_t chosen = Choose(x, weight, out, shape, &algorithm);
    if (chosen != CUBLAS_STATUS_SUCCESS) return chosen;
    return cublasLtMatmul(handle_, &layouts.operation, &one, weight.data(), &layouts.weight, x.data,
                          &layouts.x, &beta, out.data, &layouts.out, out.data, &layouts.out,
                          &algorithm, workspace_, workspace_bytes_, stream);
  };
  const cublasStatus_t status =
      multiply_as((x.rows + kRowsOfChoice - 1) / kRowsOfChoice * kRowsOfChoice);
  // Products with very few outputs: an algorithm chosen for more rows may refuse these.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    return ErrorOf(multiply_as(x.rows));
  }
  return ErrorOf(status);
}

}  // namespace fox::cuda
