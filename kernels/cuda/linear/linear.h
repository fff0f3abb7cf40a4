// Linear layers on the GPU: y = t(x) W^T, W bf16 [out, in] row-major. cuBLASLt for the rows of
// prompts, but an own kernel for their gated products; own kernels, bound by reading W once, for
// decode rows: there the row transform runs inside the product and W is prefetched while the
// previous kernel still ends.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/linear_params.h"

namespace fox::cuda {

// Owns cuBLASLt's handle, its workspace and the algorithms chosen so far (by shape). One thread.
class LinearEngine {
 public:
  LinearEngine();
  ~LinearEngine();

  // Ops::Linear. The weight is a DeviceWeight; in: f32 or bf16, as the transform's input is; out:
  // bf16 or f32; bias float32 or null; accumulate: out must be f32. transform.scratch: bf16 [rows,
  // weight.in], used when not fused. Enqueues on `stream`; may be captured once the same shape ran
  // before. Returns the first error.
  // A row's bits: where has_decode_family(), those of a decode row and those of a prefill row, in
  // any batch. The latter rests, where they are not gated, on cuBLASLt, whose kernels without a
  // split of W's columns agree (linear_test.cc). Elsewhere the same in any batch of 1..4 rows, of
  // 5..8 and of 9..16 (weight.in % 16 == 0).
  // REQUIRES: weight.in % 8 == 0; rows of in and scratch 16-byte aligned; of out only those of
  // gated prefill rows, with out.cols % 8 == 0; out overlaps none of them.
  cudaError_t Run(const LinearParams& params, cudaStream_t stream);

  // Ops::has_decode_family: on Hopper.
  bool has_decode_family() const;

  // Whether Run launches a single kernel, which triggers after its wait (launch.h).
  bool Drains(const LinearParams& params) const;

 private:
  struct State;

  bool RunsGemv(const LinearParams& params) const;
  cudaError_t RunApart(const LinearParams& params, cudaStream_t stream);

  std::unique_ptr<State> state_;
};

}  // namespace fox::cuda
