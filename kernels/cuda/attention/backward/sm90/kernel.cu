// BackwardSm90: the kernel and its launch. One block per SM for the whole launch: a producer
// warpgroup and two consumers of 64 keys each, in the manner of FlashAttention-3 (Shah et al.).
// Read plan.cuh next.
#include <algorithm>

#include "kernels/cuda/attention/backward/backward.h"
#include "kernels/cuda/attention/backward/sm90/consumer.cuh"
#include "kernels/cuda/attention/backward/sm90/plan.cuh"
#include "kernels/cuda/attention/backward/sm90/producer.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

// Registers of a thread at launch (65536 / 384, rounded down to 8) and after it.
constexpr int kLaunchRegisters = 168, kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kWarpgroups * kConsumerRegisters <= 3 * kLaunchRegisters);

template <int kHeadDim>
__device__ __forceinline__ void InitBarriers(BackwardShared<kHeadDim>& shared) {
  for (uint32_t i = 0; i < kItemSlots; ++i) {
    shared.item_full[i].Init(1);
    shared.item_empty[i].Init(kBackwardWarps);
  }
  for (uint32_t i = 0; i < BackwardPlan<kHeadDim>::kKvSlots; ++i) {
    shared.kv_full[i].Init(1);
    shared.kv_empty[i].Init(kBackwardWarps);
  }
  for (uint32_t i = 0; i < kStepSlots; ++i) {
    shared.q_full[i].Init(1);
    shared.q_empty[i].Init(kBackwardWarps);
    shared.do_full[i].Init(1);
    shared.do_empty[i].Init(kBackwardWarps);
  }
  shared.dq_full.Init(kBackwardWarps);
  shared.dq_empty.Init(1);
  shared.raw.Init(1);
  PublishBarriers();
}

template <int kHeadDim>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    BackwardSm90Kernel(const __grid_constant__ BackwardArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<BackwardShared<kHeadDim>*>(memory);
  const int warp = FromLane(Warp(), 0);
  TriggerDependents();
  if (threadIdx.x == 0) {
    if (SharedAddress(memory) % 1024 != 0) __trap();  // swizzled tiles would be read wrong
    PrefetchTensorMap(&arguments.q_map);
    PrefetchTensorMap(&arguments.k_map);
    PrefetchTensorMap(&arguments.v_map);
    PrefetchTensorMap(&arguments.do_map);
    PrefetchTensorMap(&arguments.dq_map);
    InitBarriers(shared);
  }
  __syncthreads();
  WaitOnDependencies();
  if (warp < 4) {
    WarpgroupRegDealloc<kProducerRegisters>();
    if (warp == 0) BackwardLoader<kHeadDim>(shared, arguments).Run();
    if (warp == 1) AddQueryGradients(shared, arguments);
  } else {
    WarpgroupRegAlloc<kConsumerRegisters>();
    BackwardConsumer<kHeadDim>(shared, arguments, warp / 4 - 1).Run();
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

template <int kHeadDim>
cudaError_t EncodeMaps(const VarlenAttentionParams& params, BackwardArguments& arguments) {
  using Plan = BackwardPlan<kHeadDim>;
  struct Source {
    const VarlenView& view;
    int heads, box_tokens;
    CUtensorMap* map;
  };
  for (const Source& source :
       {Source{params.q, params.q_heads, Plan::kRows, &arguments.q_map},
        Source{params.k, params.kv_heads, kVarlenTile, &arguments.k_map},
        Source{params.v, params.kv_heads, kVarlenTile, &arguments.v_map},
        Source{params.d_out, params.q_heads, Plan::kRows, &arguments.do_map}}) {
    const cudaError_t error =
        EncodeVarlenMap(source.view, params.batch, params.tokens, source.heads, kHeadDim,
                        source.box_tokens, Plan::kColumns, source.map);
    if (error != cudaSuccess) return error;
  }
  const int64_t rows =
      static_cast<int64_t>(params.q_heads) * arguments.state.max_tiles * kVarlenTile;
  return EncodeFloatMap(arguments.gradients.dq, rows, kHeadDim, Plan::kRows, &arguments.dq_map);
}

template <int kHeadDim>
cudaError_t LaunchBackward(const VarlenAttentionParams& params, BackwardArguments& arguments,
                           cudaStream_t stream) {
  if (const cudaError_t error = EncodeMaps<kHeadDim>(params, arguments); error != cudaSuccess) {
    return error;
  }
  int blocks = 0;
  if (const cudaError_t error = CountMultiprocessors(&blocks); error != cudaSuccess) return error;
  const int64_t items = static_cast<int64_t>(arguments.state.max_tiles) * params.kv_heads;
  blocks = static_cast<int>(std::min<int64_t>(blocks, items));
  constexpr size_t kBytes = sizeof(BackwardShared<kHeadDim>);
  const cudaError_t allowed =
      AllowDynamicSmem<kBytes, kHopperSmem>(KernelAddress(BackwardSm90Kernel<kHeadDim>));
  if (allowed != cudaSuccess) return allowed;
  return Launch(BackwardSm90Kernel<kHeadDim>, dim3(static_cast<unsigned>(blocks)),
                dim3(kBackwardThreads), kBytes, stream, arguments);
}

}  // namespace

bool HasBackwardSm90() {
  return TakesRegisters(KernelAddress(BackwardSm90Kernel<64>), kLaunchRegisters);
}

cudaError_t BackwardSm90(const VarlenAttentionParams& params, const VarlenState& state,
                         const VarlenGradients& gradients, cudaStream_t stream) {
  if (state.max_tiles == 0) return cudaSuccess;
  BackwardArguments arguments{};
  arguments.state = state;
  arguments.gradients = gradients;
  arguments.dk = params.dk;
  arguments.dv = params.dv;
  arguments.q_heads = params.q_heads;
  arguments.kv_heads = params.kv_heads;
  arguments.scale = static_cast<float>(params.scale);
  arguments.scale_log2 = static_cast<float>(params.scale * kLog2EDouble);
  arguments.deterministic = params.deterministic;
  return DispatchHeadDim<32>(params.head_dim, [&]<int kHeadDim>() {
    return LaunchBackward<kHeadDim>(params, arguments, stream);
  });
}

}  // namespace fox::cuda
