// The producer warpgroup of BackwardSm90: its first warp, the loader, fetches work items and loads
// their tiles; its second, the adder, sums up each step's rows and passes dQ to the copy engine,
// which adds it to global memory. Read consumer.cuh next.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/backward/sm90/plan.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace fox::cuda {

// The lanes stay together; the first one issues copies.
template <int kHeadDim>
class BackwardLoader {
 public:
  __device__ BackwardLoader(BackwardShared<kHeadDim>& shared, const BackwardArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  // The next item is fetched when this one's last step is being loaded, because a block with items
  // in reserve would still work on them when all others are done, and delay the fixed order.
  __device__ __forceinline__ void Run() {
    const int group = arguments_.q_heads / arguments_.kv_heads;
    for (uint32_t n = 0;; ++n) {
      const uint32_t slot = n % kItemSlots;
      shared_.item_empty[slot].Wait(n / kItemSlots % 2 ^ 1);
      BackwardItem& item = shared_.items[slot];
      if (Lane() == 0) {
        Fetch(item);
        shared_.item_full[slot].Arrive();
      }
      __syncwarp();
      if (item.tokens == 0) return;
      LoadKeys(arguments_.v_map, 2 * n, item);
      LoadKeys(arguments_.k_map, 2 * n + 1, item);
#pragma unroll 1
      for (int g = 0; g < group; ++g) LoadHead(item, item.kv_head * group + g, g == group - 1);
    }
  }

 private:
  using Plan = BackwardPlan<kHeadDim>;

  // Longest items first: a sequence's first tiles, which the most rows see. In the fixed order a
  // block waits for the key tiles after its own, which must have started before it.
  __device__ __forceinline__ void Fetch(BackwardItem& item) {
    const int num_tiles = *arguments_.state.num_tiles;
    const int index = atomicAdd(arguments_.gradients.work_counter, 1);
    item.tokens = 0;
    if (index >= num_tiles * arguments_.kv_heads) return;
    const int per_group = kBackwardHeadGroup * num_tiles;
    const int first = index / per_group * kBackwardHeadGroup;
    const int heads = min(kBackwardHeadGroup, arguments_.kv_heads - first);
    const int rest = index % per_group;
    item.tile = arguments_.deterministic ? num_tiles - 1 - rest / heads : rest / heads;
    item.kv_head = first + rest % heads;
    const VarlenTile& keys = arguments_.state.tiles[item.tile];
    const VarlenTile& last = arguments_.state.tiles[keys.seq_last];
    item.batch = keys.batch;
    item.token = keys.first_token;
    item.page = keys.position / kVarlenPage;
    item.tokens = last.position + last.count - keys.position;
  }

  __device__ __forceinline__ void LoadKeys(const CUtensorMap& map, uint32_t n,
                                           const BackwardItem& item) {
    const uint32_t slot = n % Plan::kKvSlots;
    shared_.kv_empty[slot].Wait(n / Plan::kKvSlots % 2 ^ 1);
    LoadTile<kVarlenTile>(map, shared_.tiles + slot * Plan::kKeyTileBytes, item, item.kv_head, 0,
                          shared_.kv_full[slot]);
  }

  // kTokens rows of a head from the item's token `first` on, the last arrival on `full`. Rows past
  // the sequence's end may be NaN, which a weight of zero would not remove.
  template <int kTokens>
  __device__ __forceinline__ void LoadTile(const CUtensorMap& map, uint8_t* tile,
                                           const BackwardItem& item, int head, int first,
                                           Mbarrier& full) {
    constexpr uint32_t kBlockBytes = kTokens * Plan::kLineBytes;
    const bool clipped = item.tokens - first < kTokens;
    Mbarrier& loaded = clipped ? shared_.raw : full;
    if (Lane() == 0) {
      loaded.ArriveAndExpect(Plan::kBlocks * kBlockBytes);
#pragma unroll
      for (int b = 0; b < Plan::kBlocks; ++b) {
        TmaLoad4D(tile + b * kBlockBytes, &map, b * Plan::kColumns, item.token + first, head,
                  item.batch, &loaded);
      }
    }
    if (!clipped) return;
    shared_.raw.Wait(raw_phase_);
    raw_phase_ ^= 1;
    constexpr int kVectors = Plan::kLineBytes / 16;
#pragma unroll 1
    for (int i = max(0, item.tokens - first) * kVectors + Lane(); i < kTokens * kVectors;
         i += kWarp) {
#pragma unroll
      for (int b = 0; b < Plan::kBlocks; ++b) {
        reinterpret_cast<uint4*>(tile + b * kBlockBytes)[i] = uint4{0, 0, 0, 0};
      }
    }
    FenceAsyncProxy();
    __syncwarp();
    if (Lane() == 0) full.Arrive();
  }

  // The steps of one query head: row tiles from the diagonal on.
  __device__ __forceinline__ void LoadHead(const BackwardItem& item, int head, bool last_head) {
    const VarlenState& state = arguments_.state;
    const int keys = head * state.max_tiles + item.tile;
    const int steps = (arguments_.gradients.last_row_tile[keys] - item.tile + 1) * Plan::kSubtiles;
#pragma unroll 1
    for (int turn = 0; turn < steps; ++turn) {
      const int rows = keys + turn / Plan::kSubtiles;
      const double c_ref = state.cum_log_f[rows] +
                           static_cast<double>(state.log_f_offset[int64_t{rows} * kVarlenTile]);
      BackwardStep step;
      step.ref = static_cast<float>(kLog2EDouble * (c_ref - state.cum_log_f[keys]));
      step.flags = turn < Plan::kSubtiles ? kDiagonal : 0;
      if (state.first_page[rows] > item.page) step.flags |= kSecondPage;
      if (turn == steps - 1) step.flags |= last_head ? kLastOfHead | kLastOfItem : kLastOfHead;
      step.row = keys * kVarlenTile + turn * Plan::kRows;
      step.turn = turn;
      LoadStep(step, keys, head, item);
    }
  }

  __device__ __forceinline__ void LoadStep(const BackwardStep& step, int keys, int head,
                                           const BackwardItem& item) {
    const uint32_t slot = step_ % kStepSlots, phase = step_ / kStepSlots % 2;
    ++step_;
    constexpr uint32_t kRowFloats = Plan::kRows * sizeof(float);
    constexpr uint32_t kKeyFloats = kVarlenTile * sizeof(float);
    const VarlenState& state = arguments_.state;
    Mbarrier& q_full = shared_.q_full[slot];
    shared_.q_empty[slot].Wait(phase ^ 1);
    if (Lane() == 0) {
      shared_.steps[slot] = step;
      q_full.Expect(kRowFloats + kKeyFloats);
      BulkLoad(shared_.lse[slot], state.lse + step.row, kRowFloats, &q_full);
      BulkLoad(shared_.key_offset[slot], state.log_f_offset + int64_t{keys} * kVarlenTile,
               kKeyFloats, &q_full);
    }
    LoadTile<Plan::kRows>(arguments_.q_map, shared_.tiles + Plan::QueryAt(slot), item, head,
                          step.turn * Plan::kRows, q_full);

    Mbarrier& do_full = shared_.do_full[slot];
    shared_.do_empty[slot].Wait(phase ^ 1);
    if (Lane() == 0) {
      do_full.Expect(kRowFloats);
      BulkLoad(shared_.delta[slot], arguments_.gradients.delta + step.row, kRowFloats, &do_full);
    }
    LoadTile<Plan::kRows>(arguments_.do_map, shared_.tiles + Plan::GradientAt(slot), item, head,
                          step.turn * Plan::kRows, do_full);
  }

  BackwardShared<kHeadDim>& shared_;
  const BackwardArguments& arguments_;
  uint32_t step_ = 0, raw_phase_ = 0;
};

// One warp adds dQ and the row sums of each step to global memory; in the fixed order it waits for
// its turn and passes it on.
template <int kHeadDim>
__device__ __forceinline__ void AddQueryGradients(BackwardShared<kHeadDim>& shared,
                                                  const BackwardArguments& arguments) {
  using Plan = BackwardPlan<kHeadDim>;
  const VarlenGradients& gradients = arguments.gradients;
  for (uint32_t n = 0;; ++n) {
    shared.dq_full.Wait(n % 2);
    const BackwardStep step = shared.adding;
    if (step.row < 0) break;
#pragma unroll
    for (int row = Lane(); row < Plan::kRows; row += kWarp) {
      float sum = shared.row_sums[0][row];
#pragma unroll
      for (int w = 1; w < kBackwardWarps; ++w) sum += shared.row_sums[w][row];
      shared.row_sum[row] = sum;
    }
    FenceAsyncProxy();
    __syncwarp();
    if (Lane() == 0) {
      int* turn = gradients.turn + step.row / kVarlenTile;
      if (arguments.deterministic) {
        while (LoadAcquire(turn) != step.turn) {
        }
        FenceAsyncProxyAll();
      }
#pragma unroll
      for (uint32_t b = 0; b < Plan::kDqBlocks; ++b) {
        TmaAdd2D(&arguments.dq_map, static_cast<int>(b) * 32, step.row,
                 shared.tiles + Plan::kDqAt + b * Plan::kDqBlockBytes);
      }
      BulkAdd(gradients.row_sum + step.row, shared.row_sum, Plan::kRows * sizeof(float));
      BulkCommit();
      BulkWaitRead();
      shared.dq_empty.Arrive();
      if (arguments.deterministic) {
        BulkWait();
        FenceAsyncProxyAll();
        StoreRelease(turn, step.turn + 1);
      }
    }
    __syncwarp();
  }
  if (Lane() == 0) BulkWait();
}

}  // namespace fox::cuda
