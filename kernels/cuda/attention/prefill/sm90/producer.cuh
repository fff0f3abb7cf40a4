// The producer warpgroup of PrefillSm90: a scheduler warp fetches work tiles and a loader warp
// loads their queries, keys, values and biases. Both run ahead of the consumers as far as the rings
// allow. Nothing right of a tile's last page or left of its first one is read: the tile's other
// page is loaded instead, and its bias excludes it. Read consumer.cuh next.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/runtime/work_order.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {

// Excludes a key from the softmax.
inline constexpr float kExcludedBias = -1e30f;

// Passes work tiles to the loader and the consumers, by one lane.
template <typename Source, int kHeadDim, bool kCertified>
class WorkScheduler {
 public:
  using Work = typename Source::Work;

  __device__ WorkScheduler(PrefillShared<Source, kHeadDim>& shared, const Source& source)
      : shared_(shared), source_(source) {}

  // Parallel splits come before or after all head tiles. After the last work tile, a work tile
  // without rows is passed on.
  __device__ __forceinline__ void Run() {
    const int num_tiles = source_.NumTiles(), q_heads = source_.NumHeads();
    const int head_tiles = num_tiles * q_heads;
    const WorkOrder order(num_tiles, q_heads, kHeadDim);
    int total = head_tiles, splits_before = 0;
    if constexpr (Source::kSplitsKeys) {
      total += source_.NumSplits();
      splits_before = source_.SplitsFirst() ? total - head_tiles : 0;
    }
    for (;;) {
      const int index = atomicAdd(source_.WorkCounter(), 1);
      if (index >= total) break;
      int tile = 0, head = 0, split = 0;
      const int head_tile = index - splits_before;
      if (!Source::kSplitsKeys || (head_tile >= 0 && head_tile < head_tiles)) {
        order.PlaceOf(head_tile, &tile, &head);
      } else if constexpr (Source::kSplitsKeys) {
        source_.PlaceOfSplit(head_tile < 0 ? index : head_tile - head_tiles, &tile, &head, &split);
      }
      if constexpr (Source::kSplitsKeys) {
        if (!source_.Covers(tile, head)) continue;
      }
      source_.template MakeWork<kCertified>(NextSlot(), tile, head, split, index + 1);
      PassOn();
      if constexpr (Source::kSplitsKeys) {
        while (TakeNextSplit()) PassOn();
      }
    }
    NextSlot() = Work{};
    shared_.work_full[slot_].Arrive();
  }

 private:
  __device__ __forceinline__ Work& NextSlot() {
    shared_.work_empty[slot_].Wait(phase_ ^ 1);
    return shared_.work_tiles[slot_];
  }
  // A work tile is fetched only when the one before it is almost loaded, because a block with long
  // work tiles in reserve would still work when all others are done.
  __device__ __forceinline__ void PassOn() {
    shared_.work_full[slot_].Arrive();
    if (++slot_ == kWorkStages) {
      slot_ = 0;
      phase_ ^= 1;
    }
    shared_.work_ending.Wait(ending_phase_);
    ending_phase_ ^= 1;
  }

  // Takes the serial split after the one passed on last; false if the rows need no more. The
  // scheduler learns this late, so a few loaded tiles are not used.
  __device__ __forceinline__ bool TakeNextSplit() {
    const Work& last = shared_.work_tiles[(slot_ + kWorkStages - 1) % kWorkStages];
    if (last.splits_left == 0) return false;
    const volatile int32_t* ended = shared_.ended_serial;
    if (ended[0] == last.serial && (last.count <= kHalfRows || ended[1] == last.serial)) {
      source_.CountUnvisited(last);
      return false;
    }
    Work& work = NextSlot();
    work = last;
    source_.template MoveToNextSplit<kCertified>(work);
    return true;
  }

  PrefillShared<Source, kHeadDim>& shared_;
  const Source& source_;
  int slot_ = 0;
  uint32_t phase_ = 0, ending_phase_ = 0;
};

// The loader warp; its lanes stay together.
template <typename Source, int kHeadDim, bool kCertified>
class PrefillLoader {
 public:
  __device__ PrefillLoader(PrefillShared<Source, kHeadDim>& shared, const Source& source)
      : shared_(shared), source_(source), lane_(Lane()) {}

  __device__ __forceinline__ void Run() {
    int slot = 0;
    uint32_t phase = 0;
    for (uint32_t count = 0;; ++count) {
      shared_.work_full[slot].Wait(phase);
      const Work& work_tile = shared_.work_tiles[slot];
      if (work_tile.count == 0) break;
      LoadQueries(work_tile, count);
      if constexpr (Source::kTransforms) {
        source_.template PrefetchGates<kHeadDim>(work_tile, lane_);
      }
      LoadTiles(work_tile);
      __syncwarp();
      if (lane_ == 0) shared_.work_empty[slot].Arrive();
      if (++slot == kWorkStages) {
        slot = 0;
        phase ^= 1;
      }
    }
  }

 private:
  using Plan = PrefillPlan<kHeadDim>;
  using Work = typename Source::Work;
  using KvLoop = typename Source::KvLoop;

  __device__ __forceinline__ void LoadQueries(const Work& work_tile, uint32_t count) {
    const uint32_t slot = count % kQueryStages;
    shared_.q_empty[slot].Wait(count / kQueryStages % 2 ^ 1);
    if (lane_ != 0) return;
    Mbarrier& full = shared_.q_full[slot];
    full.ArriveAndExpect(Plan::kTileBytes);
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      source_.template LoadQueries<kHeadDim>(shared_.q[slot] + b * Plan::kBlockBytes, work_tile,
                                             b * Plan::kColumns, full);
    }
  }

  // One lane: both pages of a tile, whose column blocks are `stride` apart; `full` expects their
  // bytes.
  __device__ __forceinline__ void LoadPages(uint8_t* tile, uint32_t stride, const CUtensorMap& map,
                                            const KvLoop& loop, int page0, int page1,
                                            Mbarrier& full) {
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      uint8_t* block = tile + b * stride;
      source_.LoadPage(block, map, loop, b * Plan::kColumns, page0, full);
      source_.LoadPage(block + Plan::kPageBytes, map, loop, b * Plan::kColumns, page1, full);
    }
  }

  __device__ __forceinline__ void LoadTiles(const Work& work_tile) {
    const KvLoop loop = source_.MakeKvLoop(work_tile);
    const int num_kv_tiles = work_tile.num_kv_tiles,
              near_end = max(0, num_kv_tiles - kTilesBeforeNext);
    const bool clipped = work_tile.last_key() < kTileKeys - 1;
    int ids = 0;
    for (int i = 0; i < num_kv_tiles; ++i, ++counter_) {
      const TileGates gates = source_.template ReadGates<kCertified>(loop, i, lane_, ids);
      if (i == near_end && lane_ == 0) shared_.work_ending.Arrive();
      const uint32_t stage = counter_ % Plan::kStages, phase = counter_ / Plan::kStages % 2;
      shared_.k_empty[stage].Wait(phase ^ 1);
      if constexpr (kCertified) {
        const bool needless = i >= static_cast<int>(Plan::kStages) &&
                              shared_.needless_for[stage][0] == counter_ &&
                              shared_.needless_for[stage][1] == counter_;
        __syncwarp();
        if (needless) {
          if (i < near_end && lane_ == 0) shared_.work_ending.Arrive();
          return EndKvLoop(stage, phase);
        }
      }
      Mbarrier& k_full = shared_.k_full[stage];
      if (lane_ == 0) {
        k_full.Expect(Plan::kTileBytes);
        LoadPages(shared_.Keys(stage), Plan::kBlockBytes, source_.k_map, loop, gates.page0,
                  gates.page1, k_full);
      }
      WriteGates(loop, stage, gates);
      // One lane arrives for all: __syncwarp orders their writes before its release, an order that
      // racecheck does not know (tests/bench/gpu_test.py leaves this kernel out).
      __syncwarp();
      if (lane_ == 0) k_full.Arrive();

      shared_.v_empty[stage].Wait(phase ^ 1);
      if (i == 0 && clipped) {
        LoadClippedValues(stage, loop, gates, work_tile.first_key(), work_tile.last_key());
      } else if (lane_ == 0) {
        Mbarrier& v_full = shared_.v_full[stage];
        v_full.ArriveAndExpect(Plan::kTileBytes);
        LoadPages(shared_.Values(stage), shared_.ValueStride(stage), source_.v_map, loop,
                  gates.page0, gates.page1, v_full);
      }
    }
  }

  // The biases of a tile, and the bound at which its rows may stop.
  __device__ __forceinline__ void WriteGates(const KvLoop& loop, uint32_t stage,
                                             const TileGates& gates) {
    const bool seen = (lane_ < 16 ? gates.id0 : gates.id1) >= 0;
    WriteBias(stage, static_cast<float>((loop.ref_log_decay - gates.base) * kLog2EDouble),
              gates.local, seen);
    if constexpr (kCertified) {
      if (lane_ == 0) {
        const double rounding = RowRounding(kHeadDim, 0, loop.ref_log_decay, gates.base);
        const double log_z = LogDenominatorToStop(gates.log_mass_bound, loop.ref_log_decay,
                                                  rounding, loop.log_tolerance);
        shared_.stop_at[stage] = __double2float_ru(log_z * kLog2EDouble);
        shared_.end[stage] = 0;
      }
    }
  }

  __device__ __forceinline__ void WriteBias(uint32_t stage, float base, const float4& local,
                                            bool seen) {
    float4 key_decay_bias{base - kLog2E * local.x, base - kLog2E * local.y, base - kLog2E * local.z,
                          base - kLog2E * local.w};
    if (!seen) key_decay_bias = {kExcludedBias, kExcludedBias, kExcludedBias, kExcludedBias};
    reinterpret_cast<float4*>(shared_.key_decay_bias[stage])[lane_] = key_decay_bias;
  }

  // Values past the sequence's end may be NaN, which a weight of zero would not remove; nor from
  // the page that is loaded in place of an invisible one.
  __device__ __forceinline__ void LoadClippedValues(uint32_t stage, const KvLoop& loop,
                                                    const TileGates& gates, int first_key,
                                                    int last_key) {
    if (lane_ == 0) {
      shared_.v_raw.ArriveAndExpect(Plan::kTileBytes);
      LoadPages(shared_.Values(stage), shared_.ValueStride(stage), source_.v_map, loop, gates.page0,
                gates.page1, shared_.v_raw);
    }
    shared_.v_raw.Wait(raw_phase_);
    raw_phase_ ^= 1;
    ClearValues(stage, 0, first_key);
    ClearValues(stage, last_key + 1, kTileKeys);
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) shared_.v_full[stage].Arrive();
  }

  // Rows [begin, end) of a tile; the swizzle only permutes units within a row.
  __device__ __forceinline__ void ClearValues(uint32_t stage, int begin, int end) {
    constexpr int kVectors = Plan::kLineBytes / 16;
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      uint4* block =
          reinterpret_cast<uint4*>(shared_.Values(stage) + b * shared_.ValueStride(stage));
      for (int i = begin * kVectors + lane_; i < end * kVectors; i += kWarp) {
        block[i] = uint4{0, 0, 0, 0};
      }
    }
  }

  // Passes on a slot without a tile: both halves have stopped.
  __device__ __forceinline__ void EndKvLoop(uint32_t stage, uint32_t phase) {
    if (lane_ == 0) {
      shared_.end[stage] = 1;
      shared_.k_full[stage].Arrive();
    }
    shared_.v_empty[stage].Wait(phase ^ 1);
    if (lane_ == 0) shared_.v_full[stage].Arrive();
    ++counter_;
  }

  PrefillShared<Source, kHeadDim>& shared_;
  const Source& source_;
  const int lane_;
  uint32_t counter_ = 0;  // of key/value tiles
  uint32_t raw_phase_ = 0;
};

}  // namespace fox::cuda
