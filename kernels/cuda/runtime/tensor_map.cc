// EncodeTensorMap by the driver's cuTensorMapEncodeTiled.
#include "kernels/cuda/runtime/tensor_map.h"

#include <cstddef>

namespace fox::cuda {
namespace {

constexpr size_t kMaxRank = 4;

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's encoder; null without driver.
EncodeTiled FindEncoder() {
  static const EncodeTiled encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<EncodeTiled>(entry) : nullptr;
  }();
  return encoder;
}

}  // namespace

cudaError_t EncodeTensorMap(const void* data, std::span<const TensorDim> dims, CUtensorMap* map) {
  const EncodeTiled encode = FindEncoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const size_t rank = dims.size();
  if (rank < 2 || rank > kMaxRank) return cudaErrorInvalidValue;
  cuuint64_t size[kMaxRank], stride[kMaxRank];  // of stride, the first dimension has none
  cuuint32_t box[kMaxRank], element_stride[kMaxRank];
  for (size_t i = 0; i < rank; ++i) {
    size[i] = static_cast<cuuint64_t>(dims[i].size);
    box[i] = static_cast<cuuint32_t>(dims[i].box);
    element_stride[i] = 1;
    // The stride of a dimension of one index may be anything, and is never used.
    if (i > 0) stride[i - 1] = dims[i].size == 1 ? 16 : static_cast<cuuint64_t>(dims[i].stride) * 2;
  }
  const CUresult result = encode(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(rank), const_cast<void*>(data),
      size, stride, box, element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE,
      dims[0].box == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fox::cuda
