// Linear layers on the GPU: W [out, in] row-major, bf16 or 8 bits with the same results. Own
// kernels, bound by reading W once, for decode rows: there the norm runs inside the product, and W
// is prefetched while the previous kernel still ends. cuBLASLt for prefill rows, but on Hopper own
// kernels for gated products and for up to 1,536 rows by weights of 8 bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/interface/linear_params.h"
#include "kernels/interface/workload.h"

namespace fox::cuda {

class DeviceWeight;

// Owns cuBLASLt's handle, the algorithms chosen so far (by shape), and scratch. One thread.
class LinearEngine {
 public:
  LinearEngine();
  ~LinearEngine();

  // The most decode rows of a call that the own kernel takes on GPUs other than Hopper.
  static constexpr int64_t kMaxPassedRows = 32;

  // Scratch for products with norms and gates of load.max_rows rows.
  int64_t WorkspaceBytes(const Workload& load) const;
  cudaError_t Reserve(const Workload& load);

  // Memory for the weight in bf16 if it has 8 bits; not while products run.
  cudaError_t ReserveWidened(const DeviceWeight& weight);

  // Ops::Linear. The weight is a DeviceWeight, reserved for; in: f32 with a norm, else bf16; out:
  // bf16 or f32, with a gate bf16, to add to f32. Enqueues on `stream`; may be captured once the
  // same shape ran before. Returns the first error. Invariance of bits: on Hopper a decode row has
  // the same bits in any batch, and so has a prefill row. Ungated prefill rows rely on cuBLASLt for
  // this, whose kernels without a split of W's columns agree (linear_test.cc). On other GPUs only a
  // decode row among at most kMaxPassedRows has the same bits in any batch. REQUIRES: weight.in % 8
  // == 0; rows of `in` 16-byte aligned; gated prefill rows of `out` 16-byte aligned, with out.cols
  // % 8 == 0; `out` overlaps no input.
  cudaError_t Run(const LinearParams& params, cudaStream_t stream);

  // True if the last Run launched one kernel, which triggers after its wait (launch.h).
  bool triggers_late() const;

  // Discards the deferred norm of `rows`, because another operation writes to them.
  void Forget(const void* rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fox::cuda
