// Products with many rows, by cuBLASLt: bf16 operands, float32 sums.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cuda/linear/device_weight.h"

namespace fox::cuda {

// Owns cuBLASLt's handle and remembers the algorithm of every shape it has seen. One thread.
class CublasGemm {
 public:
  // Device memory that the products on one stream may share.
  CublasGemm(void* workspace, size_t workspace_bytes);
  ~CublasGemm();
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  // out = x W^T, or out += ...: x bf16 [rows, in], out bf16 or f32. Captured only after the same
  // call ran before: the choice of an algorithm is the host's work.
  cudaError_t Multiply(const MatrixView& x, const DeviceWeight& weight, bool accumulate,
                       const MatrixView& out, cudaStream_t stream);

  // Whether there is a cuBLASLt at all; else Multiply gives this error, too.
  cudaError_t created() const { return created_; }

  // Shapes whose algorithm is known. A new number of rows is rarely a new shape.
  size_t known_shapes() const { return algorithms_.size(); }

 private:
  // rows rounded up, out, in, strides of x and out, type of out, accumulate, alignments of x, W and
  // out.
  using Shape = std::array<int64_t, 10>;
  struct Layouts;

  cublasStatus_t Ask(Layouts& layouts, const Shape& shape,
                     std::vector<cublasLtMatmulHeuristicResult_t>* found);
  cublasStatus_t Choose(MatrixView x, const DeviceWeight& weight, MatrixView out,
                        const Shape& shape, cublasLtMatmulAlgo_t* algorithm);

  cublasLtHandle_t handle_ = nullptr;
  cudaError_t created_;
  void* workspace_;
  size_t workspace_bytes_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace fox::cuda
