// WidenPages: widens pages of 8 bits to bf16 exactly, so attention's results are the same as from
// pages that held these numbers in bf16.
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOfList = 64;

// A list per blockIdx.x, the dimension of a grid that may be largest.
__global__ void __launch_bounds__(kThreads)
    WidenPagesKernel(const __grid_constant__ BatchView batch, const __grid_constant__ PagedKv kv,
                     const __grid_constant__ StepSchedule schedule, int layer) {
  TriggerDependents();
  WaitOnDependencies();
  const WidePages& wide = schedule.wide;
  const int list = wide.first + static_cast<int>(blockIdx.x), kv_heads = kv.shape.kv_heads;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *schedule.tile_counter = 0;
  const SequenceRows rows = RowsOf(batch, wide.first_seq + list / kv_heads);
  if (rows.count == 0) return;
  const int64_t index = kv.ListIndex(rows.slot, layer, list % kv_heads);
  const int parts_of_row = kv.shape.head_dim / kVec8, parts = kPageTokens * parts_of_row;
  const int end = PagesFor(rows.position + rows.count);
  for (int n = kv.first_live[index] + static_cast<int>(blockIdx.y); n < end;
       n += static_cast<int>(gridDim.y)) {
    const int32_t page = kv.Table(index)[n];
    const int64_t from = static_cast<int64_t>(page) * parts;
    const int64_t to = (static_cast<int64_t>(blockIdx.x) * wide.pages + n) * parts;
    for (int i = static_cast<int>(threadIdx.x); i < parts; i += kThreads) {
      const int token = i / parts_of_row;
      const auto widen = [&](const void* pool, const int8_t* exponent, void* out) {
        static_cast<uint4*>(out)[to + i] =
            WidenPart(static_cast<const uint2*>(pool)[from + i], *exponent);
      };
      widen(kv.keys, kv.KeyExponent(page, token), wide.keys);
      widen(kv.values, kv.ValueExponent(page, token), wide.values);
    }
  }
}

}  // namespace

cudaError_t WidenPages(const BatchView& batch, const PagedKv& kv, int layer,
                       const StepSchedule& schedule, cudaStream_t stream) {
  const WidePages& wide = schedule.wide;
  const dim3 grid(static_cast<unsigned>(wide.end - wide.first),
                  static_cast<unsigned>(wide.pages < kBlocksOfList ? wide.pages : kBlocksOfList));
  return Launch(WidenPagesKernel, grid, dim3(kThreads), 0, stream, batch, kv, schedule, layer);
}

}  // namespace fox::cuda
