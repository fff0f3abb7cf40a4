// The producer warpgroup of PrefillSm90: a scheduler warp fetches work tiles and a loader warp
// brings in their queries, keys, values and biases, both running ahead of the consumers as far as
// the rings allow. Nothing right of a tile's last page or left of its first one is read: the tile's
// other page stands in, and the bias takes it out again. Read consumer.cuh next.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/math.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace fox::cuda {

// Takes a key out of the softmax.
inline constexpr float kExcludedBias = -1e30f;
// With logits within this of each other, in log2 units, no float32 or bf16 in the walk overflows:
// weights stay below 2^64, their sums below 2^96.
inline constexpr double kBoundedSpread = 64;

// Order of the work: heads in groups that share the L2 cache; within a group the last tiles, which
// have the longest walks, first; heads fastest.
__device__ __forceinline__ void PlaceOf(int index, int num_tiles, int q_heads, int* tile,
                                        int* head) {
  const int per_group = kHeadGroup * num_tiles;
  const int first_head = index / per_group * kHeadGroup;
  const int heads = min(kHeadGroup, q_heads - first_head);
  const int rest = index % per_group;
  *tile = num_tiles - 1 - rest / heads;
  *head = first_head + rest % heads;
}

// c of a position of the work tile's page list.
__device__ __forceinline__ double CumulativeGate(const PagedKv& kv, const WorkTile& work_tile,
                                                 int in_group, int position) {
  const int64_t own =
      static_cast<int64_t>(kv.page_table[work_tile.table + position / kPageTokens]) *
          kv.shape.group() +
      in_group;
  const float* local = static_cast<const float*>(kv.log_f_offset) + own * kPageTokens;
  return kv.page_cum_log_f[own] + static_cast<double>(local[position % kPageTokens]);
}

__device__ __forceinline__ WorkTile MakeWorkTile(const PrefillArguments& arguments, int num_tiles,
                                                 int index) {
  const PagedKv& kv = arguments.kv;
  int tile = 0, head = 0;
  PlaceOf(index, num_tiles, kv.shape.q_heads, &tile, &head);
  const RowBlock rows = arguments.schedule.tiles[tile];
  const int64_t boundary_at = static_cast<int64_t>(head) * arguments.schedule.max_tiles + tile;
  const int group = kv.shape.group();
  WorkTile work_tile{};
  work_tile.first_row = rows.first_row;
  work_tile.count = rows.count;
  work_tile.position = rows.position;
  work_tile.seq = rows.seq;
  work_tile.head = head;
  work_tile.first_page = min(arguments.schedule.boundary[boundary_at], rows.position / kPageTokens);
  work_tile.num_kv_tiles = rows.position / kTileKeys - work_tile.first_page / 2 + 1;
  work_tile.table = kv.ListIndex(rows.slot, arguments.layer, head / group) * kv.shape.max_pages;
  work_tile.ref_log_decay = CumulativeGate(kv, work_tile, head % group, rows.position);
  work_tile.log_tolerance = -INFINITY;
  if (arguments.log_tolerance != nullptr && arguments.max_norm_product != nullptr) {
    const double last = CumulativeGate(kv, work_tile, head % group, rows.position + rows.count - 1);
    work_tile.log_tolerance = arguments.log_tolerance[rows.seq] -
                              RowRounding(kv.shape.head_dim, arguments.max_norm_product[head], last,
                                          work_tile.ref_log_decay);
  }
  // A key's bias does not exceed that of the row's own key, which lies in the diagonal tile.
  const double spread = arguments.max_logit_bound == nullptr
                            ? INFINITY
                            : 2 * arguments.max_logit_bound[head] * kLog2EDouble;
  work_tile.track_max = spread <= kBoundedSpread ? 0 : 1;
  return work_tile;
}

// One lane fetches work tiles until there are none, then passes on one of no rows. A work tile is
// fetched only when the one before it is almost loaded: a block that holds long work tiles in
// reserve would still work on them when all others are done.
template <int kHeadDim>
__device__ __forceinline__ void ScheduleWork(PrefillShared<kHeadDim>& shared,
                                             const PrefillArguments& arguments) {
  const int num_tiles = *arguments.schedule.num_tiles;
  const int total = num_tiles * arguments.kv.shape.q_heads;
  int slot = 0;
  uint32_t phase = 0, ending_phase = 0;
  for (bool more = true; more;) {
    const int index = atomicAdd(arguments.schedule.tile_counter, 1);
    more = index < total;
    WorkTile work_tile{};
    if (more) work_tile = MakeWorkTile(arguments, num_tiles, index);
    shared.work_empty[slot].Wait(phase ^ 1);
    shared.work_tiles[slot] = work_tile;
    shared.work_full[slot].Arrive();
    if (++slot == kWorkStages) {
      slot = 0;
      phase ^= 1;
    }
    if (more) shared.work_ending.Wait(ending_phase);
    ending_phase ^= 1;
  }
}

// The loader warp; its lanes stay together.
template <int kHeadDim, bool kCertified>
class PrefillLoader {
 public:
  __device__ PrefillLoader(PrefillShared<kHeadDim>& shared, const PrefillArguments& arguments)
      : shared_(shared), arguments_(arguments), lane_(Lane()) {}

  __device__ __forceinline__ void Run() {
    int slot = 0;
    uint32_t phase = 0;
    for (uint32_t count = 0;; ++count) {
      shared_.work_full[slot].Wait(phase);
      const WorkTile& work_tile = shared_.work_tiles[slot];
      if (work_tile.count == 0) break;
      LoadQueries(work_tile, count);
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

  __device__ __forceinline__ void LoadQueries(const WorkTile& work_tile, uint32_t count) {
    const uint32_t slot = count % kQueryStages;
    shared_.q_empty[slot].Wait(count / kQueryStages % 2 ^ 1);
    if (lane_ != 0) return;
    Mbarrier& full = shared_.q_full[slot];
    full.ArriveAndExpect(Plan::kTileBytes);
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      TmaLoad2D(shared_.q[slot] + b * Plan::kBlockBytes, &arguments_.q_map,
                work_tile.head * kHeadDim + b * Plan::kColumns, work_tile.first_row, &full);
    }
  }

  // One lane: both pages of a tile; `full` expects their bytes.
  __device__ __forceinline__ void LoadPages(uint8_t* tile, const CUtensorMap& map, int page0,
                                            int page1, Mbarrier& full) {
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      uint8_t* block = tile + b * Plan::kBlockBytes;
      TmaLoad2D(block, &map, b * Plan::kColumns, page0 * kPageTokens, &full);
      TmaLoad2D(block + Plan::kPageBytes, &map, b * Plan::kColumns, page1 * kPageTokens, &full);
    }
  }

  // A work tile's constants, in registers: what lies in shared memory would be read for every tile.
  struct Walk {
    const int32_t* table;
    int first_page, last_page, diagonal, group, in_group;
    double ref_log_decay, log_tolerance;
  };

  // What the loader reads of a tile for itself. Four keys a lane.
  struct TileGates {
    int id0, id1;      // page ids; -1: not seen
    int page0, page1;  // what stands in for them
    double base, log_mass_bound;
    float4 local;
  };

  __device__ __forceinline__ TileGates ReadGates(const Walk& walk, int i, int& ids) {
    const PagedKv& kv = arguments_.kv;
    constexpr int kTilesRead = kWarp / 2;  // page ids are read a warp at a time
    if (i % kTilesRead == 0) {
      const int page = 2 * (walk.diagonal - i) + 1 - lane_;
      ids = page >= walk.first_page && page <= walk.last_page ? walk.table[page] : -1;
    }
    TileGates gates;
    gates.id1 = FromLane(ids, 2 * (i % kTilesRead));
    gates.id0 = FromLane(ids, 2 * (i % kTilesRead) + 1);
    gates.page0 = gates.id0 >= 0 ? gates.id0 : gates.id1;
    gates.page1 = gates.id1 >= 0 ? gates.id1 : gates.id0;
    const int64_t own =
        static_cast<int64_t>(lane_ < 16 ? gates.page0 : gates.page1) * walk.group + walk.in_group;
    gates.base = kv.page_cum_log_f[own];
    gates.local =
        reinterpret_cast<const float4*>(kv.log_f_offset)[own * (kPageTokens / 4) + lane_ % 16];
    gates.log_mass_bound = 0;
    if constexpr (kCertified) {
      if (i > 0)
        gates.log_mass_bound =
            kv.log_mass_bound[static_cast<int64_t>(gates.page1) * walk.group + walk.in_group];
    }
    return gates;
  }

  __device__ __forceinline__ void LoadTiles(const WorkTile& work_tile) {
    const int group = arguments_.kv.shape.group();
    const Walk walk{arguments_.kv.page_table + work_tile.table,
                    work_tile.first_page,
                    work_tile.last_page(),
                    work_tile.diagonal(),
                    group,
                    work_tile.head % group,
                    work_tile.ref_log_decay,
                    work_tile.log_tolerance};
    const int num_kv_tiles = work_tile.num_kv_tiles,
              near_end = max(0, num_kv_tiles - kTilesBeforeNext);
    const bool clipped = work_tile.last_key() < kTileKeys - 1;
    int ids = 0;
    for (int i = 0; i < num_kv_tiles; ++i, ++counter_) {
      const TileGates gates = ReadGates(walk, i, ids);
      if (i == near_end && lane_ == 0) shared_.work_ending.Arrive();
      const uint32_t stage = counter_ % Plan::kStages, phase = counter_ / Plan::kStages % 2;
      shared_.k_empty[stage].Wait(phase ^ 1);
      if constexpr (kCertified) {
        const bool needless = i >= static_cast<int>(Plan::kStages) && shared_.done[stage][0] != 0 &&
                              shared_.done[stage][1] != 0;
        __syncwarp();
        if (needless) {
          if (i < near_end && lane_ == 0) shared_.work_ending.Arrive();
          return EndWalk(stage, phase);
        }
      }
      Mbarrier& k_full = shared_.k_full[stage];
      if (lane_ == 0) {
        k_full.Expect(Plan::kTileBytes);
        LoadPages(shared_.k[stage], arguments_.k_map, gates.page0, gates.page1, k_full);
      }
      WriteGates(walk, stage, gates);
      // One lane arrives for all: __syncwarp orders their writes before its release, an order that
      // racecheck does not know (tests/bench/gpu_test.py leaves this kernel out).
      __syncwarp();
      if (lane_ == 0) k_full.Arrive();

      shared_.v_empty[stage].Wait(phase ^ 1);
      if (i == 0 && clipped) {
        LoadClippedValues(stage, gates.page0, gates.page1, work_tile.first_key(),
                          work_tile.last_key());
      } else if (lane_ == 0) {
        Mbarrier& v_full = shared_.v_full[stage];
        v_full.ArriveAndExpect(Plan::kTileBytes);
        LoadPages(shared_.v[stage], arguments_.v_map, gates.page0, gates.page1, v_full);
      }
    }
  }

  // The biases of a tile, and when its rows may stop.
  __device__ __forceinline__ void WriteGates(const Walk& walk, uint32_t stage,
                                             const TileGates& gates) {
    const bool seen = (lane_ < 16 ? gates.id0 : gates.id1) >= 0;
    WriteBias(stage, static_cast<float>((walk.ref_log_decay - gates.base) * kLog2EDouble),
              gates.local, seen);
    if constexpr (kCertified) {
      if (lane_ == 0) {
        const double rounding = RowRounding(kHeadDim, 0, walk.ref_log_decay, gates.base);
        const double log_z = LogDenominatorToStop(gates.log_mass_bound, walk.ref_log_decay,
                                                  rounding, walk.log_tolerance);
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

  // What lies past the sequence's end may be NaN, which a weight of zero would not silence; so
  // may what stands in for a page that is not seen.
  __device__ __forceinline__ void LoadClippedValues(uint32_t stage, int page0, int page1,
                                                    int first_key, int last_key) {
    uint8_t* tile = shared_.v[stage];
    if (lane_ == 0) {
      shared_.v_raw.ArriveAndExpect(Plan::kTileBytes);
      LoadPages(tile, arguments_.v_map, page0, page1, shared_.v_raw);
    }
    shared_.v_raw.Wait(raw_phase_);
    raw_phase_ ^= 1;
    ClearRows(tile, 0, first_key);
    ClearRows(tile, last_key + 1, kTileKeys);
    FenceAsyncProxy();
    __syncwarp();
    if (lane_ == 0) shared_.v_full[stage].Arrive();
  }

  // Rows [begin, end) of a tile; the swizzle only moves things within a row.
  __device__ __forceinline__ void ClearRows(uint8_t* tile, int begin, int end) {
    constexpr int kVectors = Plan::kLineBytes / 16;
#pragma unroll
    for (int b = 0; b < Plan::kBlocks; ++b) {
      uint4* block = reinterpret_cast<uint4*>(tile + b * Plan::kBlockBytes);
      for (int i = begin * kVectors + lane_; i < end * kVectors; i += kWarp) {
        block[i] = uint4{0, 0, 0, 0};
      }
    }
  }

  // Passes on a slot without a tile: both halves have stopped.
  __device__ __forceinline__ void EndWalk(uint32_t stage, uint32_t phase) {
    if (lane_ == 0) {
      shared_.end[stage] = 1;
      shared_.k_full[stage].Arrive();
    }
    shared_.v_empty[stage].Wait(phase ^ 1);
    if (lane_ == 0) shared_.v_full[stage].Arrive();
    ++counter_;
  }

  PrefillShared<kHeadDim>& shared_;
  const PrefillArguments& arguments_;
  const int lane_;
  uint32_t counter_ = 0;  // of key/value tiles
  uint32_t raw_phase_ = 0;
};

}  // namespace fox::cuda
