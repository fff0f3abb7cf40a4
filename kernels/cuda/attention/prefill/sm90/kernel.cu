// PrefillSm90: the kernel and its launch. One block per SM for the whole launch: a producer
// warpgroup and two consumers of 64 rows each, in the manner of FlashAttention-3 (Shah et al.).
// Read plan.cuh next.
#include <algorithm>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prefill/sm90/consumer.cuh"
#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/attention/prefill/sm90/producer.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

// Registers of a thread at launch (65536 / 384, rounded down to 8) and after it.
constexpr int kLaunchRegisters = 168, kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kHalves * kConsumerRegisters <= 3 * kLaunchRegisters);
constexpr size_t kAlignment = 1024;  // of swizzled tiles; the launch does not promise it

template <int kHeadDim>
__device__ __forceinline__ void InitBarriers(PrefillShared<kHeadDim>& shared) {
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
  }
  shared.v_raw.Init(1);
  PublishBarriers();
}

template <int kHeadDim, bool kCertified>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillSm90Kernel(const __grid_constant__ PrefillArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  uint8_t* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  auto& shared = *reinterpret_cast<PrefillShared<kHeadDim>*>(aligned);
  const int warp = FromLane(Warp(), 0);
  TriggerDependents();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&arguments.q_map);
    PrefetchTensorMap(&arguments.k_map);
    PrefetchTensorMap(&arguments.v_map);
    InitBarriers(shared);
  }
  __syncthreads();
  WaitOnDependencies();
  if (warp < 4) {
    WarpgroupRegDealloc<kProducerRegisters>();
    if (warp == 0) {
      PrefillLoader<kHeadDim, kCertified>(shared, arguments).Run();
    } else if (warp == 1 && threadIdx.x % kWarp == 0) {
      ScheduleWork(shared, arguments);
    }
  } else {
    WarpgroupRegAlloc<kConsumerRegisters>();
    PrefillConsumer<kHeadDim, kCertified>(shared, arguments, warp / 4 - 1).Run();
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

cudaError_t CountMultiprocessors(int* count) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

template <int kHeadDim, bool kCertified>
cudaError_t LaunchPrefill(PrefillArguments& arguments, const MatrixView& q, int blocks,
                          cudaStream_t stream) {
  const PagedKv& kv = arguments.kv;
  const int64_t pool_rows = static_cast<int64_t>(kv.shape.num_pages) * kPageTokens;
  const int64_t q_cols = static_cast<int64_t>(kv.shape.q_heads) * kHeadDim;
  constexpr int kColumns = PrefillPlan<kHeadDim>::kColumns;
  cudaError_t error =
      EncodeMatrixMap(q.data, q.rows, q_cols, q.row_stride, kTileRows, kColumns, &arguments.q_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(kv.keys, pool_rows, kHeadDim, kHeadDim, kPageTokens, kColumns,
                          &arguments.k_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(kv.values, pool_rows, kHeadDim, kHeadDim, kPageTokens, kColumns,
                          &arguments.v_map);
  if (error != cudaSuccess) return error;
  constexpr size_t kBytes = sizeof(PrefillShared<kHeadDim>) + kAlignment;
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t allowed = AllowDynamicSmem(
      KernelAddress(PrefillSm90Kernel<kHeadDim, kCertified>), static_cast<int>(kBytes));
  if (allowed != cudaSuccess) return allowed;
  return Launch(PrefillSm90Kernel<kHeadDim, kCertified>, dim3(static_cast<unsigned>(blocks)),
                dim3(kPrefillThreads), kBytes, stream, arguments);
}

template <int kHeadDim>
cudaError_t LaunchFor(AcpMode acp, PrefillArguments& arguments, const MatrixView& q, int blocks,
                      cudaStream_t stream) {
  return acp == AcpMode::kCertified ? LaunchPrefill<kHeadDim, true>(arguments, q, blocks, stream)
                                    : LaunchPrefill<kHeadDim, false>(arguments, q, blocks, stream);
}

}  // namespace

bool HasPrefillSm90() {
  // A body that only traps is compiled to a few registers.
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, PrefillSm90Kernel<64, true>) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // no image for this device: an answer, not an error
    return false;
  }
  return attributes.numRegs >= kLaunchRegisters;
}

cudaError_t PrefillSm90(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, int max_tiles, cudaStream_t stream) {
  if (max_tiles == 0) return cudaSuccess;
  int blocks = 0;
  if (const cudaError_t error = CountMultiprocessors(&blocks); error != cudaSuccess) return error;
  const int64_t work_tiles = static_cast<int64_t>(max_tiles) * kv.shape.q_heads;
  blocks = static_cast<int>(std::min<int64_t>(blocks, work_tiles));
  PrefillArguments arguments{};
  arguments.kv = kv;
  arguments.schedule = schedule;
  arguments.layer = params.layer;
  arguments.log_tolerance = params.acp == AcpMode::kCertified ? batch.log_tolerance : nullptr;
  arguments.max_logit_bound = params.bound.max_logit_bound;
  arguments.max_norm_product = params.bound.max_norm_product != nullptr
                                   ? params.bound.max_norm_product
                                   : params.bound.max_logit_bound;
  arguments.out = params.out.data;
  arguments.out_stride = params.out.row_stride;
  arguments.lse = static_cast<float*>(params.lse.data);
  arguments.lse_stride = params.lse.row_stride;
  arguments.blocks_total = params.blocks_total;
  arguments.blocks_pruned = params.blocks_pruned;
  return DispatchHeadDim<32>(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(params.acp, arguments, params.q, blocks, stream);
  });
}

}  // namespace fox::cuda
