// The kernel of PrefillSm90 and its launch, for any source of keys and values. One block per SM for
// the whole launch: a producer warpgroup and two consumers of 64 rows each, in the manner of
// FlashAttention-3 (Shah et al.). Read plan.cuh next.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/prefill/sm90/consumer.cuh"
#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/attention/prefill/sm90/producer.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {

// Registers of a thread at launch (65536 / 384, rounded down to 8) and after it. With the
// certificate the scheduler needs more of them.
inline constexpr int kLaunchRegisters = 168;
template <bool kCertified>
inline constexpr int kProducerRegisters = kCertified ? 56 : 40;
template <bool kCertified>
inline constexpr int kConsumerRegisters =
    (3 * kLaunchRegisters - kProducerRegisters<kCertified>) / kHalves;
inline constexpr size_t kAlignment = 1024;  // of swizzled tiles; the launch does not promise it

template <typename Source, int kHeadDim>
__device__ __forceinline__ void InitBarriers(PrefillShared<Source, kHeadDim>& shared) {
  for (int i = 0; i < kWorkStages; ++i) {
    shared.work_full[i].Init(1);
    shared.work_empty[i].Init(1 + kConsumerWarps);
  }
  shared.work_ending.Init(1);
  for (int i = 0; i < kQueryStages; ++i) {
    shared.q_full[i].Init(1);
    shared.q_empty[i].Init(kConsumerWarps);
  }
  for (uint32_t i = 0; i < PrefillPlan<kHeadDim>::kStages; ++i) {
    shared.k_full[i].Init(1);
    shared.k_empty[i].Init(kConsumerWarps);
    shared.v_full[i].Init(1);
    shared.v_empty[i].Init(kConsumerWarps);
    for (int half = 0; half < kHalves; ++half) shared.needless_for[i][half] = 0;
  }
  shared.v_raw.Init(1);
  for (int half = 0; half < kHalves; ++half) shared.ended_serial[half] = 0;
  PublishBarriers();
}

// By all threads.
template <typename Source, int kHeadDim>
__device__ __forceinline__ void FillOnes(PrefillShared<Source, kHeadDim>& shared) {
  constexpr int kWords = sizeof(shared.ones) / sizeof(uint32_t);
  constexpr uint32_t kTwoOnes = 0x3f803f80;
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kPrefillThreads) {
    shared.ones[i] = kTwoOnes;
  }
  FenceAsyncProxy();
}

template <typename Source, int kHeadDim, bool kCertified>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillSm90Kernel(const __grid_constant__ Source source) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  uint8_t* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  auto& shared = *reinterpret_cast<PrefillShared<Source, kHeadDim>*>(aligned);
  const int warp = FromLane(Warp(), 0);
  TriggerDependents();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&source.q_map);
    PrefetchTensorMap(&source.k_map);
    PrefetchTensorMap(&source.v_map);
    InitBarriers(shared);
  }
  FillOnes(shared);
  __syncthreads();
  WaitOnDependencies();
  if (warp < 4) {
    WarpgroupRegDealloc<kProducerRegisters<kCertified>>();
    if (warp == 0) {
      PrefillLoader<Source, kHeadDim, kCertified>(shared, source).Run();
    } else if (warp == 1 && threadIdx.x % kWarp == 0) {
      WorkScheduler<Source, kHeadDim, kCertified>(shared, source).Run();
    }
  } else {
    WarpgroupRegAlloc<kConsumerRegisters<kCertified>>();
    PrefillConsumer<Source, kHeadDim, kCertified>(shared, source, warp / 4 - 1).Run();
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

// `work_tiles`: an upper bound on their number.
template <typename Source, int kHeadDim, bool kCertified>
cudaError_t LaunchPrefillSm90(const Source& source, int64_t work_tiles, cudaStream_t stream) {
  int processors = 0;
  cudaError_t error = CountMultiprocessors(&processors);
  if (error != cudaSuccess) return error;
  constexpr size_t kBytes = sizeof(PrefillShared<Source, kHeadDim>) + kAlignment;
  const auto kernel = PrefillSm90Kernel<Source, kHeadDim, kCertified>;
  error = AllowDynamicSmem<kBytes, kHopperSmem>(KernelAddress(kernel));
  if (error != cudaSuccess) return error;
  const int most = Source::kSplitsKeys ? std::min(processors, kMaxSerialBlocks) : processors;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, work_tiles));
  return Launch(kernel, dim3(blocks), dim3(kPrefillThreads), kBytes, stream, source);
}

// True if the current device has the kernel as compiled for sm_90a.
template <typename Source, int kHeadDim, bool kCertified>
bool HasPrefillSm90Kernel() {
  return TakesRegisters(KernelAddress(PrefillSm90Kernel<Source, kHeadDim, kCertified>),
                        kLaunchRegisters);
}

}  // namespace fox::cuda
