// The products of a consumer warpgroup of PrefillSm90, and the registers that they read and write.
// Wgmma groups finish in the order they were closed.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda {

template <typename Source, int kHeadDim>
class PrefillProducts {
 public:
  explicit __device__ PrefillProducts(PrefillShared<Source, kHeadDim>& shared)
      : keys_(KeyMajor(shared.Keys(0))),
        values_(MatrixDescriptor(SharedAddress(shared.Values(0)), Shared::ValueStride(0),
                                 8 * Plan::kLineBytes, Plan::kSwizzle)) {}

  float out[kHeadDim / 2];
  float sums[4];  // of the weights of row r at 2r

  // `rows`: the half's first query row in shared memory.
  __device__ __forceinline__ void SetQueries(const uint8_t* rows) { queries_ = KeyMajor(rows); }

  __device__ __forceinline__ void IssueScores(float (&s)[64], uint32_t n) {
    const uint64_t k = keys_ + n % kStages * Shared::kKeyDescriptorStep;
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t at =
          step * 32 / Plan::kLineBytes * Plan::kBlockBytes + step * 32 % Plan::kLineBytes;
      if (step == 0) {
        WgmmaQk<true>(s, queries_, k);
      } else {
        WgmmaQk<false>(s, queries_ + at / 16, k + at / 16);
      }
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void IssueValues(uint32_t n) {
    const uint64_t v = values_ + n % kStages * Shared::kValueDescriptorStep;
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      WgmmaValuesAndSums(out, sums, probs_, step, v + step * (16 * Plan::kLineBytes / 16));
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0;
  }

  __device__ __forceinline__ void WaitForAll() { WaitForOutputs<0>(); }
  // Waits for all groups except the one issued last, which computes scores.
  __device__ __forceinline__ void WaitForAllButScores() { WaitForOutputs<1>(); }

  __device__ __forceinline__ void Rescale(const float (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= rows[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] *= rows[i / 2];
  }

  // REQUIRES: no products that read probs_ are in flight.
  __device__ __forceinline__ void TakeProbs(const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) probs_[i] = PackBf16(s[2 * i], s[2 * i + 1]);
  }

 private:
  using Shared = PrefillShared<Source, kHeadDim>;
  using Plan = PrefillPlan<kHeadDim>;
  static constexpr uint32_t kStages = Plan::kStages;

  template <int kPending>
  __device__ __forceinline__ void WaitForOutputs() {
    WgmmaWait<kPending>();
    WarpgroupFenceOperand(out);
    WarpgroupFenceOperand(sums);
  }

  // 8 rows of queries or keys follow each other, head dim contiguous.
  __device__ __forceinline__ uint64_t KeyMajor(const uint8_t* tile) {
    return MatrixDescriptor(SharedAddress(tile), 16, 8 * Plan::kLineBytes, Plan::kSwizzle);
  }

  const uint64_t keys_, values_;  // descriptors of the first stage's
  uint64_t queries_ = 0;
  uint32_t probs_[32];
};

}  // namespace fox::cuda
