// The producer warpgroup of BackwardSm90, one lane of a warp for each role: the key loader fetches
// work items, their values and keys; the row loader brings in what their steps read; the adder
// hands each step's dQ to the copy engine, which adds it to global memory. Read consumer.cuh next.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/backward/sm90/plan.cuh"
#include "kernels/cuda/primitives/math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace fox::cuda {

template <int kHeadDim>
class KeyLoader {
 public:
  __device__ KeyLoader(BackwardShared<kHeadDim>& shared, const BackwardArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void Run() {
    const int num_tiles = *arguments_.state.num_tiles;
    const int total = num_tiles * arguments_.kv_heads;
    for (uint32_t n = 0;; ++n) {
      const int index = atomicAdd(arguments_.gradients.work_counter, 1);
      const uint32_t slot = n % kItemSlots;
      shared_.item_empty[slot].Wait(n / kItemSlots % 2 ^ 1);
      BackwardItem& item = shared_.items[slot];
      item.count = 0;
      if (index < total) {
        PlaceOf(index, num_tiles, &item.tile, &item.kv_head);
        const DenseTile& keys = arguments_.state.tiles[item.tile];
        item.count = keys.count;
        item.batch = keys.batch;
        item.token = keys.first_token;
      }
      shared_.item_full[slot].Arrive();
      if (index >= total) return;
      Load(arguments_.v_map, 2 * n, item);
      Load(arguments_.k_map, 2 * n + 1, item);
    }
  }

 private:
  using Plan = BackwardPlan<kHeadDim>;

  // Long walks first: those of a sequence's first tiles. In the fixed order a block waits for the
  // key tiles after its own, which must have begun before it.
  __device__ __forceinline__ void PlaceOf(int index, int num_tiles, int* tile, int* kv_head) {
    const int per_group = kBackwardHeadGroup * num_tiles;
    const int first = index / per_group * kBackwardHeadGroup;
    const int heads = min(kBackwardHeadGroup, arguments_.kv_heads - first);
    const int rest = index % per_group;
    *tile = arguments_.deterministic ? num_tiles - 1 - rest / heads : rest / heads;
    *kv_head = first + rest % heads;
  }

  __device__ __forceinline__ void Load(const CUtensorMap& map, uint32_t n,
                                       const BackwardItem& item) {
    const uint32_t slot = n % Plan::kKvSlots;
    shared_.kv_empty[slot].Wait(n / Plan::kKvSlots % 2 ^ 1);
    shared_.kv_full[slot].ArriveAndExpect(Plan::kKeyTileBytes);
    uint8_t* tile = shared_.tiles + slot * Plan::kKeyTileBytes;
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      TmaLoad4D(tile + b * Plan::kKeyBlockBytes, &map, b * Plan::kColumns, item.token, item.kv_head,
                item.batch, &shared_.kv_full[slot]);
    }
  }

  BackwardShared<kHeadDim>& shared_;
  const BackwardArguments& arguments_;
};

template <int kHeadDim>
class RowLoader {
 public:
  __device__ RowLoader(BackwardShared<kHeadDim>& shared, const BackwardArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void Run() {
    const int group = arguments_.q_heads / arguments_.kv_heads;
    for (uint32_t n = 0;; ++n) {
      const uint32_t slot = n % kItemSlots;
      shared_.item_full[slot].Wait(n / kItemSlots % 2);
      const BackwardItem& item = shared_.items[slot];
      if (item.count == 0) return;
#pragma unroll 1
      for (int g = 0; g < group; ++g) LoadHead(item, item.kv_head * group + g, g == group - 1);
      shared_.item_empty[slot].Arrive();
    }
  }

 private:
  using Plan = BackwardPlan<kHeadDim>;

  // The steps of one query head: row tiles from the diagonal on.
  __device__ __forceinline__ void LoadHead(const BackwardItem& item, int head, bool last_head) {
    const DenseState& state = arguments_.state;
    const int keys = head * state.max_tiles + item.tile;
    const int steps = (arguments_.gradients.last_row_tile[keys] - item.tile + 1) * Plan::kSubtiles;
#pragma unroll 1
    for (int turn = 0; turn < steps; ++turn) {
      const int rows = keys + turn / Plan::kSubtiles;
      const double c_ref = state.cum_log_f[rows] +
                           static_cast<double>(state.log_f_offset[int64_t{rows} * kDenseTile]);
      BackwardStep step;
      step.ref = static_cast<float>(kLog2EDouble * (c_ref - state.cum_log_f[keys]));
      step.flags = turn < Plan::kSubtiles ? kDiagonal : 0;
      if (turn == steps - 1) step.flags |= last_head ? kLastOfHead | kLastOfItem : kLastOfHead;
      step.row = keys * kDenseTile + turn * Plan::kRows;
      step.turn = turn;
      LoadStep(step, keys, head, item);
    }
  }

  __device__ __forceinline__ void LoadStep(const BackwardStep& step, int keys, int head,
                                           const BackwardItem& item) {
    const uint32_t slot = step_ % kStepSlots, phase = step_ / kStepSlots % 2;
    ++step_;
    constexpr uint32_t kRowFloats = Plan::kRows * sizeof(float);
    constexpr uint32_t kKeyFloats = kDenseTile * sizeof(float);
    const DenseState& state = arguments_.state;
    Mbarrier& q_full = shared_.q_full[slot];
    shared_.q_empty[slot].Wait(phase ^ 1);
    shared_.steps[slot] = step;
    q_full.ArriveAndExpect(Plan::kRowTileBytes + kRowFloats + kKeyFloats);
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      TmaLoad4D(shared_.tiles + Plan::QueryAt(slot, b), &arguments_.q_map, b * Plan::kColumns,
                item.token + step.turn * Plan::kRows, head, item.batch, &q_full);
    }
    BulkLoad(shared_.lse[slot], state.lse + step.row, kRowFloats, &q_full);
    BulkLoad(shared_.key_offset[slot], state.log_f_offset + int64_t{keys} * kDenseTile, kKeyFloats,
             &q_full);

    Mbarrier& do_full = shared_.do_full[slot];
    shared_.do_empty[slot].Wait(phase ^ 1);
    do_full.ArriveAndExpect(Plan::kRowTileBytes + kRowFloats);
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      TmaLoad4D(shared_.tiles + Plan::GradientAt(slot, b), &arguments_.do_map, b * Plan::kColumns,
                item.token + step.turn * Plan::kRows, head, item.batch, &do_full);
    }
    BulkLoad(shared_.delta[slot], arguments_.gradients.delta + step.row, kRowFloats, &do_full);
  }

  BackwardShared<kHeadDim>& shared_;
  const BackwardArguments& arguments_;
  uint32_t step_ = 0;
};

// One thread adds dQ and the row sums of each step to global memory; in the fixed order it waits
// for its turn and passes it on.
template <int kHeadDim>
__device__ __forceinline__ void AddQueryGradients(BackwardShared<kHeadDim>& shared,
                                                  const BackwardArguments& arguments) {
  using Plan = BackwardPlan<kHeadDim>;
  const DenseGradients& gradients = arguments.gradients;
  for (uint32_t n = 0;; ++n) {
    shared.dq_full.Wait(n % 2);
    const BackwardStep step = shared.adding;
    if (step.row < 0) break;
    int* turn = gradients.turn + step.row / kDenseTile;
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
  BulkWait();
}

}  // namespace fox::cuda
