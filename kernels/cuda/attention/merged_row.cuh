// The merge of a row's sink, for all attention kernels, and of splits over keys, for serial splits
// (prefill/sm90/consumer.cuh) and parallel ones (prefill/sm90/split_keys.cu). No rounding is left
// to the compiler.
#pragma once

#include <cfloat>

#include "kernels/cuda/ptx/fast_math.cuh"

namespace fox::cuda {

// The sums of a row over several splits, and the factors of outputs when one more is merged: of the
// sums so far and of the split.
struct MergedRow {
  float max, sum;
  float of_sums, of_split;

  __device__ __forceinline__ void Merge(float2 split) {
    const float both = fmaxf(max, split.x);
    of_sums = Exp2(max - both);
    of_split = Exp2(split.x - both);
    max = both;
    sum = fmaf(sum, of_sums, __fmul_rn(split.y, of_split));
  }
  // Once per row, after all keys: a split that adds exp(logit) and no output. `decay`: c of the row
  // minus the reference c of the logits. Afterwards the caller multiplies the output by of_sums.
  __device__ __forceinline__ void MergeSink(float logit, double decay) {
    const auto x = static_cast<float>(kLog2EDouble * (static_cast<double>(logit) - decay));
    Merge({fminf(x, FLT_MAX), 1});  // infinity less infinity would be NaN
  }
  __device__ __forceinline__ float Output(float so_far, float of_this) const {
    return fmaf(so_far, of_sums, __fmul_rn(of_this, of_split));
  }
  // True if the row needs no further splits.
  __device__ __forceinline__ bool MayStop(float stop_at) const {
    return __fmul_rn(sum, Exp2(max - stop_at)) >= 1.0f;
  }
};

}  // namespace fox::cuda
