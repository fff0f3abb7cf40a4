// The driver's encoder is found at run time, so that libcuda need not be linked.
#include "kernels/cuda/runtime/tensor_map.h"

#include "kernels/core/check.h"

namespace fox::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Null without driver.
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

// Sizes and box from the fastest dimension on; strides in bytes, from the second on.
template <int kRank>
cudaError_t Encode(CUtensorMapDataType type, void* data, const cuuint64_t (&size)[kRank],
                   const cuuint64_t (&stride)[kRank - 1], const cuuint32_t (&box)[kRank],
                   CUtensorMapSwizzle swizzle, CUtensorMap* map) {
  const EncodeTiled encode = FindEncoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint32_t element_stride[kRank];
  for (cuuint32_t& one : element_stride) one = 1;
  const CUresult result = encode(
      map, type, kRank, data, size, stride, box, element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

CUtensorMapSwizzle LineSwizzle(int box_cols) {
  FOX_CHECK(box_cols == 64 || box_cols == 32);
  return box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

cuuint64_t Bytes(int64_t elements) { return static_cast<cuuint64_t>(elements) * 2; }

}  // namespace

cudaError_t EncodeMatrixMap(void* data, int64_t rows, int64_t cols, int64_t row_stride,
                            int box_rows, int box_cols, CUtensorMap* map) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {Bytes(row_stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, size, stride, box, LineSwizzle(box_cols),
                   map);
}

cudaError_t EncodeLinesMap(const void* data, int64_t rows, int halves, int64_t row_bytes,
                           int box_rows, int box_lines, CUtensorMap* map) {
  FOX_CHECK(row_bytes % kMapLineBytes == 0);
  const cuuint64_t size[4] = {kMapLineBytes, static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(halves),
                              static_cast<cuuint64_t>(row_bytes / kMapLineBytes)};
  const cuuint64_t stride[3] = {static_cast<cuuint64_t>(row_bytes),
                                static_cast<cuuint64_t>(rows * row_bytes), kMapLineBytes};
  const cuuint32_t box[4] = {kMapLineBytes, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(halves), static_cast<cuuint32_t>(box_lines)};
  return Encode<4>(CU_TENSOR_MAP_DATA_TYPE_UINT8, const_cast<void*>(data), size, stride, box,
                   CU_TENSOR_MAP_SWIZZLE_128B, map);
}

cudaError_t EncodeFloatMap(float* data, int64_t rows, int64_t cols, int box_rows,
                           CUtensorMap* map) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(cols) * sizeof(float)};
  const cuuint32_t box[2] = {32, static_cast<cuuint32_t>(box_rows)};
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, data, size, stride, box,
                   CU_TENSOR_MAP_SWIZZLE_128B, map);
}

cudaError_t EncodeVarlenMap(const VarlenView& view, int batch, int tokens, int heads, int head_dim,
                            int box_tokens, int box_cols, CUtensorMap* map) {
  const cuuint64_t size[4] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(tokens),
                              static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  // The stride of a dimension of one index may be anything, and is never used.
  const auto bytes = [](int extent, int64_t stride) { return Bytes(extent == 1 ? 8 : stride); };
  const cuuint64_t stride[3] = {bytes(tokens, view.token_stride), bytes(heads, view.head_stride),
                                bytes(batch, view.batch_stride)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_tokens),
                             1, 1};
  return Encode<4>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, view.data, size, stride, box,
                   LineSwizzle(box_cols), map);
}

}  // namespace fox::cuda
