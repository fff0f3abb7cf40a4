// Backward with mma.sync: a thread block of eight warps owns a key tile of one kv head, 16 keys per
// warp, and loops over the rows that see it, 32 or 64 at a time, while the next rows are copied.
// Products have keys as their rows (S^T = K Q^T, dP^T = V dO^T), so that P^T and dS^T are operands
// of dV and dK in the registers in which they are computed; dS goes through shared memory for dQ,
// whose rows and columns the warps divide among them. Logits are in units of log 2,
//     x_ij = s_ij scale log2(e) + (c_ref - c_j) log2(e) - lse_i.
// See backward.h.
#include <cuda_bf16.h>
#include <math_constants.h>

#include "kernels/cuda/attention/backward/backward.h"
#include "kernels/cuda/attention/backward/sm80/tile.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace backward_sm80;

template <int kHeadDim>
inline constexpr int kRowTiles = kStepRows<kHeadDim> / 8;  // columns of 8 of S^T

// A warp's keys. A thread has keys g and g + 8, g = lane / 4; a key is spread over the four lanes
// of a quad.
template <int kHeadDim>
struct KeyState {
  uint32_t values[kHeadDim / 16][4];  // operands, a step of 16 dimensions each
  float dk[kHeadDim / 8][4] = {}, dv[kHeadDim / 8][4] = {};
  float col_sum[2] = {};  // of the current query head and this thread's rows
  float bias[2];          // of the current row tile: (c_ref - c_j) log2(e)
};

// The range of the tile's keys that a step's rows see, in multiples of 32.
struct KeyRange {
  int begin, end;

  __device__ bool Has(int key) const { return begin <= key && key < end; }
};

__device__ __forceinline__ int WarpKey() { return OpaqueThreadIdx() / kWarp * kWarpKeys; }
// The thread's key g + 8 half, counted in the tile.
__device__ __forceinline__ int KeyOf(int half) {
  return WarpKey() + OpaqueThreadIdx() % kWarp / 4 + half * 8;
}

template <int kHeadDim>
__device__ __forceinline__ KeyRange VisibleKeys(const KeyTile& tile, const Step& step,
                                                const StepRows<kHeadDim>& rows) {
  return {rows.first_page > tile.first_page ? kVarlenPage : 0,
          min(step.row + kStepRows<kHeadDim>, kVarlenTile)};
}

// The values' fragments, directly from global memory because each is read once.
template <int kHeadDim>
__device__ __forceinline__ void LoadValues(const BackwardArguments& arguments, const KeyTile& tile,
                                           KeyState<kHeadDim>& keys) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = KeyOf(half);
    const bool real = key < tile.count;
    const auto* from = RowOf<const __nv_bfloat16>(arguments.v, tile, real ? key : 0, tile.kv_head) +
                       Lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      const auto pair = *reinterpret_cast<const uint32_t*>(from + i * 8);
      keys.values[i / 2][i % 2 * 2 + half] = real ? pair : 0;
    }
  }
}

// Updates for a new row tile.
template <int kHeadDim>
__device__ __forceinline__ void SetBias(const BackwardArguments& arguments, const KeyTile& tile,
                                        const Step& step, const StepRows<kHeadDim>& rows,
                                        KeyState<kHeadDim>& keys) {
  const int64_t own = arguments.state.HeadTile(step.head, tile.index);
  const double c_ref = rows.cum_log_f + static_cast<double>(rows.log_f_offset);
  const auto gate = static_cast<float>(c_ref - arguments.state.cum_log_f[own]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    keys.bias[half] =
        (gate - arguments.state.log_f_offset[own * kVarlenTile + KeyOf(half)]) * kLog2E;
  }
}

// S^T and dP^T of the warp's keys and the step's rows, without scale.
template <int kHeadDim>
__device__ __forceinline__ void Logits(const SharedMemory<kHeadDim>& shared, int stage,
                                       const KeyState<kHeadDim>& keys,
                                       float (&s)[kRowTiles<kHeadDim>][4],
                                       float (&dp)[kRowTiles<kHeadDim>][4]) {
  using Layout = RowLayout<kHeadDim>;
  const int lane = OpaqueThreadIdx() % kWarp;
  const int row = Layout::Offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t own = SharedAddress(shared.keys) +
                       Layout::Offset(OpaqueThreadIdx() / kWarp * kWarpKeys + lane % 16, lane / 16);
  const uint32_t q = SharedAddress(shared.q[stage]) + row;
  const uint32_t d_out = SharedAddress(shared.d_out[stage]) + row;
#pragma unroll
  for (int r = 0; r < kRowTiles<kHeadDim>; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[r][i] = dp[r][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t k[4];
    LoadMatrices(k, own ^ (step * 32));
#pragma unroll
    for (int r = 0; r < kRowTiles<kHeadDim>; r += 2) {
      uint32_t b[4];
      LoadMatrices(b, (q + r * 8 * Layout::kBytes) ^ (step * 32));
      MultiplyAdd(s[r], k, b[0], b[1]);
      MultiplyAdd(s[r + 1], k, b[2], b[3]);
      LoadMatrices(b, (d_out + r * 8 * Layout::kBytes) ^ (step * 32));
      MultiplyAdd(dp[r], keys.values[step], b[0], b[1]);
      MultiplyAdd(dp[r + 1], keys.values[step], b[2], b[3]);
    }
  }
}

// From logits to P^T and dS^T as operands of 16 rows each, and, of float32, this thread's part of
// dS's sums over rows and, in row_sums[2 r + e] of row 8 r + 2 (lane % 4) + e, over keys.
// `first_row`: of the step; `masked`: keys after a row are hidden.
template <int kHeadDim>
__device__ __forceinline__ void Weigh(const StepRows<kHeadDim>& rows, float log2_scale, bool masked,
                                      int first_row, const float (&s)[kRowTiles<kHeadDim>][4],
                                      const float (&dp)[kRowTiles<kHeadDim>][4],
                                      KeyState<kHeadDim>& keys,
                                      uint32_t (&p)[kRowTiles<kHeadDim> / 2][4],
                                      uint32_t (&ds)[kRowTiles<kHeadDim> / 2][4],
                                      float (&row_sums)[kRowTiles<kHeadDim> * 2]) {
  const int pair = OpaqueThreadIdx() % 4 * 2;
  const int behind = first_row + pair - KeyOf(0);  // by how much row `pair` follows key g
  float col_sum[2] = {};
#pragma unroll
  for (int r = 0; r < kRowTiles<kHeadDim>; ++r) {
    const float2 lse = *reinterpret_cast<const float2*>(rows.lse + r * 8 + pair);
    const float2 delta = *reinterpret_cast<const float2*>(rows.delta + r * 8 + pair);
    row_sums[r * 2] = row_sums[r * 2 + 1] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x0 = fmaf(s[r][half * 2], log2_scale, keys.bias[half] - lse.x);
      float x1 = fmaf(s[r][half * 2 + 1], log2_scale, keys.bias[half] - lse.y);
      if (masked) {
        if (behind + r * 8 < half * 8) x0 = -CUDART_INF_F;
        if (behind + r * 8 + 1 < half * 8) x1 = -CUDART_INF_F;
      }
      const float p0 = Exp2(x0), p1 = Exp2(x1);
      const float ds0 = p0 * (dp[r][half * 2] - delta.x),
                  ds1 = p1 * (dp[r][half * 2 + 1] - delta.y);
      p[r / 2][r % 2 * 2 + half] = PackBf16(p0, p1);
      ds[r / 2][r % 2 * 2 + half] = PackBf16(ds0, ds1);
      col_sum[half] += ds0 + ds1;
      row_sums[r * 2] += ds0;
      row_sums[r * 2 + 1] += ds1;
    }
  }
  keys.col_sum[0] += col_sum[0];
  keys.col_sum[1] += col_sum[1];
}

// Stores the warp's dS and the sums over its keys for all warps.
template <int kHeadDim>
__device__ __forceinline__ void ShareLogitGradients(
    const uint32_t (&ds)[kRowTiles<kHeadDim> / 2][4], float (&row_sums)[kRowTiles<kHeadDim> * 2],
    SharedMemory<kHeadDim>& shared) {
  ScatterSums(row_sums);
  constexpr int kOwn = kRowTiles<kHeadDim> / 4;  // sums that a lane has now
  const int thread = OpaqueThreadIdx(), lane = thread % kWarp;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int sum = lane / 4 * kOwn + i;  // before they were scattered
    shared.row_sums[thread / kWarp][sum / 2 * 8 + lane % 4 * 2 + sum % 2] = row_sums[i];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int r = 0; r < kRowTiles<kHeadDim>; ++r) {
      const int offset = RowLayout<kStepRows<kHeadDim>>::Offset(KeyOf(half), r) + Lane() % 4 * 4;
      *reinterpret_cast<uint32_t*>(shared.d_logits + offset) = ds[r / 2][r % 2 * 2 + half];
    }
  }
}

// sum += weights^T rows: dV from P and dO, dK from dS and Q.
template <int kHeadDim>
__device__ __forceinline__ void AddRows(const uint8_t* rows,
                                        const uint32_t (&weights)[kRowTiles<kHeadDim> / 2][4],
                                        float (&sum)[kHeadDim / 8][4]) {
  using Layout = RowLayout<kHeadDim>;
  const int lane = OpaqueThreadIdx() % kWarp;
  const uint32_t from = SharedAddress(rows) + Layout::Offset(lane % 16, lane / 16);
#pragma unroll
  for (int r = 0; r < kRowTiles<kHeadDim> / 2; ++r) {
#pragma unroll
    for (int m = 0; m < kHeadDim / 8; m += 2) {
      uint32_t b[4];
      LoadTransposed(b, (from + r * 16 * Layout::kBytes) ^ (m * 16));
      MultiplyAdd(sum[m], weights[r], b[0], b[1]);
      MultiplyAdd(sum[m + 1], weights[r], b[2], b[3]);
    }
  }
}

// The products of the warp's keys and the step's rows.
template <int kHeadDim>
__device__ __forceinline__ void AttendRows(const BackwardArguments& arguments, const Step& step,
                                           int stage, KeyState<kHeadDim>& keys,
                                           SharedMemory<kHeadDim>& shared) {
  uint32_t p[kRowTiles<kHeadDim> / 2][4], ds[kRowTiles<kHeadDim> / 2][4];
  float row_sums[kRowTiles<kHeadDim> * 2];
  {
    float s[kRowTiles<kHeadDim>][4], dp[kRowTiles<kHeadDim>][4];
    Logits<kHeadDim>(shared, stage, keys, s, dp);
    Weigh<kHeadDim>(shared.rows[stage], arguments.log2_scale, step.row < kVarlenTile, step.row, s,
                    dp, keys, p, ds, row_sums);
  }
  AddRows<kHeadDim>(shared.d_out[stage], p, keys.dv);
  ShareLogitGradients<kHeadDim>(ds, row_sums, shared);
  AddRows<kHeadDim>(shared.q[stage], ds, keys.dk);
}

// dQ += dS K and the sums of dS's rows, 16 rows and a quarter of the dimensions each warp. Every
// address gets one addition from this block.
template <int kHeadDim>
__device__ __forceinline__ void AddQueryGradients(const BackwardArguments& arguments,
                                                  const Step& step, const KeyRange& visible,
                                                  const SharedMemory<kHeadDim>& shared) {
  using Layout = RowLayout<kHeadDim>;
  using LogitLayout = RowLayout<kStepRows<kHeadDim>>;
  constexpr int kRowBlocks = kStepRows<kHeadDim> / 16, kColBlocks = kWarps / kRowBlocks;
  constexpr int kCols = kHeadDim / kColBlocks / 8;  // of 8 dimensions
  const int thread = OpaqueThreadIdx(), lane = thread % kWarp;
  const int row_block = thread / kWarp % kRowBlocks, col_block = thread / kWarp / kRowBlocks;
  const uint32_t d_logits =
      SharedAddress(shared.d_logits) +
      LogitLayout::Offset(lane / 16 * 8 + lane % 8, row_block * 2 + lane / 8 % 2);
  const uint32_t keys = SharedAddress(shared.keys) + Layout::Offset(lane, col_block * kCols);
  float dq[kCols][4] = {};
#pragma unroll 1
  for (int key = visible.begin; key < visible.end; key += 32) {
    uint32_t a[2][4];
    LoadTransposed(a[0], d_logits + key * LogitLayout::kBytes);
    LoadTransposed(a[1], d_logits + (key + 16) * LogitLayout::kBytes);
#pragma unroll
    for (int m = 0; m < kCols; ++m) {
      uint32_t b[4];
      LoadTransposed(b, (keys + key * Layout::kBytes) ^ (m * 16));
      MultiplyAdd(dq[m], a[0], b[0], b[1]);
      MultiplyAdd(dq[m], a[1], b[2], b[3]);
    }
  }
  const int64_t first = step.PaddedRow(arguments, shared.tile);
  float* to = arguments.gradients.dq + (first + row_block * 16 + lane / 4) * kHeadDim +
              col_block * kCols * 8 + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kCols; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(to + i / 2 * 8 * kHeadDim + m * 8 + i % 2, dq[m][i]);
  }
  if (thread >= kStepRows<kHeadDim>) return;
  float sum = 0;
  for (int warp = visible.begin / kWarpKeys; warp < visible.end / kWarpKeys; ++warp) {
    sum += shared.row_sums[warp][thread];
  }
  atomicAdd(arguments.gradients.row_sum + first + thread, sum);
}

// Deterministic: returns when all later key tiles have added to the step's row tile; a barrier of
// the block must follow.
__device__ __forceinline__ void WaitForTurn(const BackwardArguments& arguments, const KeyTile& tile,
                                            const Step& step) {
  if (threadIdx.x != 0) return;
  const int32_t* turn = arguments.gradients.turn + step.Tile(arguments, tile);
  while (LoadCoherent(turn) != step.row / kVarlenTile) __nanosleep(32);
  __threadfence();
}

// After a barrier that follows the block's additions to a row tile; null: there were none.
__device__ __forceinline__ void EndTurn(int32_t* turn) {
  if (threadIdx.x == 0 && turn != nullptr) AtomicAddAcqRel(turn, 1);
}

// Writes and resets the sums of dS's columns of a query head.
template <int kHeadDim>
__device__ __forceinline__ void StoreColumnSums(const BackwardArguments& arguments,
                                                const KeyTile& tile, int head,
                                                KeyState<kHeadDim>& keys) {
  float* to =
      arguments.gradients.col_sum + arguments.state.HeadTile(head, tile.index) * kVarlenTile;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = QuadSum(keys.col_sum[half]);
    if (Lane() % 4 == 0) to[KeyOf(half)] = sum;
    keys.col_sum[half] = 0;
  }
}

template <int kHeadDim>
__device__ __forceinline__ void StoreKeyGradients(const BackwardArguments& arguments,
                                                  const KeyTile& tile,
                                                  const KeyState<kHeadDim>& keys) {
  const float scale = arguments.scale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = KeyOf(half), col = Lane() % 4 * 2;
    if (key >= tile.count) continue;
    auto* dk = RowOf<__nv_bfloat16>(arguments.dk, tile, key, tile.kv_head) + col;
    auto* dv = RowOf<__nv_bfloat16>(arguments.dv, tile, key, tile.kv_head) + col;
#pragma unroll
    for (int m = 0; m < kHeadDim / 8; ++m) {
      const float* dk_pair = &keys.dk[m][half * 2];
      const float* dv_pair = &keys.dv[m][half * 2];
      *reinterpret_cast<uint32_t*>(dk + m * 8) = PackBf16(dk_pair[0] * scale, dk_pair[1] * scale);
      *reinterpret_cast<uint32_t*>(dv + m * 8) = PackBf16(dv_pair[0], dv_pair[1]);
    }
  }
}

// Grid: at least kv_heads * *num_tiles blocks.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) BackwardSm80Kernel(const BackwardArguments arguments) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<kHeadDim>*>(shared_bytes);
  TriggerDependents();
  WaitOnDependencies();
  if (threadIdx.x == 0) shared.tile = TakeTile(arguments);
  __syncthreads();
  const KeyTile& tile = shared.tile;
  if (tile.index < 0) return;

  const int end_head = (tile.kv_head + 1) * arguments.group;
  Step step = FirstStep(arguments, tile, tile.kv_head * arguments.group);
  CopyKeys<kHeadDim>(arguments, shared);
  CopyStep<kHeadDim>(arguments, step, 0, shared);
  CommitCopies();
  KeyState<kHeadDim> keys;
  LoadValues<kHeadDim>(arguments, tile, keys);
  int32_t* ended_turn = nullptr;
  int stage = 0;
#pragma unroll 1
  while (step.head < end_head) {
    WaitCopies<0>();
    // From here on all warps see the step's rows, and none reads the previous step's rows.
    __syncthreads();
    EndTurn(ended_turn);
    ended_turn = nullptr;
    const Step next = NextStep<kStepRows<kHeadDim>>(arguments, tile, step);
    if (next.head < end_head) CopyStep<kHeadDim>(arguments, next, stage ^ 1, shared);
    CommitCopies();

    const StepRows<kHeadDim>& rows = shared.rows[stage];
    const bool new_tile = step.row % kVarlenTile == 0;
    if (new_tile) SetBias<kHeadDim>(arguments, tile, step, rows, keys);
    if (VisibleKeys<kHeadDim>(tile, step, rows).Has(WarpKey())) {
      AttendRows<kHeadDim>(arguments, step, stage, keys, shared);
    }
    if (arguments.deterministic && new_tile) WaitForTurn(arguments, tile, step);
    __syncthreads();  // dS is complete
    AddQueryGradients<kHeadDim>(arguments, step, VisibleKeys<kHeadDim>(tile, step, rows), shared);
    if (next.head != step.head) StoreColumnSums<kHeadDim>(arguments, tile, step.head, keys);
    if (arguments.deterministic && (next.row % kVarlenTile == 0)) {
      ended_turn = arguments.gradients.turn + step.Tile(arguments, tile);
    }
    step = next;
    stage ^= 1;
  }
  __syncthreads();
  EndTurn(ended_turn);
  StoreKeyGradients<kHeadDim>(arguments, tile, keys);
}

template <int kHeadDim>
cudaError_t LaunchBackward(const BackwardArguments& arguments, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(SharedMemory<kHeadDim>);
  const cudaError_t prepared =
      AllowDynamicSmem<kBytes>(KernelAddress(BackwardSm80Kernel<kHeadDim>));
  if (prepared != cudaSuccess) return prepared;
  const dim3 grid(static_cast<unsigned>(arguments.kv_heads) *
                  static_cast<unsigned>(arguments.state.max_tiles));
  return Launch(BackwardSm80Kernel<kHeadDim>, grid, dim3(kThreads), kBytes, stream, arguments);
}

}  // namespace

cudaError_t BackwardSm80(const VarlenAttentionParams& params, const VarlenState& state,
                         const VarlenGradients& gradients, cudaStream_t stream) {
  BackwardArguments arguments{};
  arguments.q = params.q;
  arguments.k = params.k;
  arguments.v = params.v;
  arguments.d_out = params.d_out;
  arguments.dk = params.dk;
  arguments.dv = params.dv;
  arguments.state = state;
  arguments.gradients = gradients;
  arguments.kv_heads = params.kv_heads;
  arguments.group = params.q_heads / params.kv_heads;
  arguments.scale = static_cast<float>(params.scale);
  arguments.log2_scale = static_cast<float>(params.scale * kLog2EDouble);
  arguments.deterministic = params.deterministic;
  return DispatchHeadDim<32>(
      params.head_dim, [&]<int kHeadDim>() { return LaunchBackward<kHeadDim>(arguments, stream); });
}

}  // namespace fox::cuda
