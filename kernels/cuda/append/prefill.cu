// Append of prefill rows, first kernel of three: every row block by itself. Keys and values go into
// pages, gates relative to the page's start; the addend of a full page to the running sums goes
// into a record of StepSchedule::page_sums. No row block reads data that another writes;
// accumulate.cu adds up the records in order.
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/append/page_sums.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// Blocks on an SM that the registers must allow.
template <int kHeadDim, bool kGeneralBound, typename Part>
inline constexpr int kMinBlocks = !kGeneralBound && kHeadDim <= 64                        ? 6
                                  : kGeneralBound && kHeadDim > 64 && kHasExponents<Part> ? 3
                                                                                          : 4;

template <int kHeadDim>
struct BlockSpace {
  alignas(16) __nv_bfloat16 keys[kPageTokens * kHeadDim];  // of the page, by place
  float term[kPageTokens];
  float key_sum[kWarps][kHeadDim];
  float count[kWarps];
};

// Consecutive rows that a row's lanes process at a time, so that the row before each but the first,
// which the token shift mixes in, is in the same lanes.
template <int kHeadDim>
inline constexpr int kLaneRows = kRowLanes<kHeadDim> < 8 ? kRowLanes<kHeadDim> / 2 : 4;

// A row block and one kv head of it.
struct HeadBlock {
  RowBlock rows;
  int64_t index;  // of the block
  int kv_head;
  int group;
  int place;     // of the first row in its page
  int32_t page;  // id
  bool first_of_seq;
};

// A lane's loads for its rows' gates.
struct RawGates {
  float logits[2], bias;
};

__device__ __forceinline__ RawGates LoadGates(const AppendParams& params, const HeadBlock& block,
                                              int g) {
  const int head = block.kv_head * block.group + g, last = block.rows.count - 1;
  RawGates raw;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min(2 * Lane() + i, last);
    raw.logits[i] = GateLogit(params, *GateLogitAt(params, block.rows.first_row + row, head));
  }
  raw.bias = GateBias(params, head);
  return raw;
}

// Log gates of a query head, added up from the page's start: lane i holds rows 2i and 2i + 1.
// decay [64], by place, receives the decay of each of the page's keys up to the block's last row.
__device__ __forceinline__ void WriteGates(const AppendParams& params, const PagedKv& kv,
                                           const StepSchedule& schedule, const HeadBlock& block,
                                           int g, const RawGates& raw, float* decay) {
  const int lane = Lane(), head = block.kv_head * block.group + g, row = 2 * lane;
  const int64_t summary = static_cast<int64_t>(block.page) * block.group + g;
  double one = 0, two = 0;
  if (row < block.rows.count) one = static_cast<double>(LogGate(params, raw.logits[0] + raw.bias));
  if (row + 1 < block.rows.count) {
    two = static_cast<double>(LogGate(params, raw.logits[1] + raw.bias));
  }
  double start = 0;  // a block that begins inside a page is its sequence's first: c is known
  if (block.place > 0) {
    const int before = kv.After(block.rows.slot, block.rows.position);
    start = kv.cum_log_f[kv.HeadIndex(before, params.layer, head)] - kv.page_cum_log_f[summary];
  }
  const double sum = WarpScan(one + two);
  double before = FromLaneBelow(sum, 1);
  if (lane == 0) before = 0;
  const double all = start + FromLane(sum, kWarp - 1);
  const float first = static_cast<float>(start + (before + one));
  const float second = static_cast<float>(start + sum);
  float* local = kv.LogFOffsets<float>(summary);
  if (row < block.rows.count) {
    local[block.place + row] = first;
    decay[block.place + row] = static_cast<float>(all - static_cast<double>(first));
  }
  if (row + 1 < block.rows.count) {
    local[block.place + row + 1] = second;
    decay[block.place + row + 1] = static_cast<float>(all - static_cast<double>(second));
  }
  for (int i = lane; i < block.place; i += kWarp) {
    decay[i] = static_cast<float>(all - static_cast<double>(local[i]));
  }
  if (lane == kWarp - 1) RecordOf(schedule, kv, block.index, head)[kLogGate] = sum;
}

// A lane's loads for its rows: all are issued before the first is waited for; meanwhile the gates
// are computed.
template <int kHeadDim>
struct RawRows {
  static constexpr int kRows = kLaneRows<kHeadDim>;
  uint4 keys[kRows], values[kRows];
  uint4 key_before, value_before;  // of the row before the first, where rows are shifted
  // Shift logit of one row: lane sub has the logit of row sub % kRows, for the keys if sub < kRows,
  // else for the values.
  __nv_bfloat16 shift_logit;
};

// The lane's part of the row before row r of the block, at `before` in the batch unless r is the
// sequence's first. Rows of last_k and last_v were bf16, so rounding them to it loses nothing.
template <int kHeadDim>
__device__ __forceinline__ uint4 LoadBefore(const AppendParams& params, const PagedKv& kv,
                                            const HeadBlock& block, int r,
                                            const __nv_bfloat16* before, void* last) {
  const int in_head = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim> * kVec8;
  if (r > 0 || !block.first_of_seq) return *reinterpret_cast<const uint4*>(before);
  if (block.rows.position == 0) return {};
  const int slot = kv.After(block.rows.slot, block.rows.position);
  return ToBf16x8(LoadVec8(LastRow(kv, last, slot, params.layer, block.kv_head) + in_head));
}

// Keys and values of rows [first, first + kRows) of the block; past the last row, the last.
template <int kHeadDim>
__device__ __forceinline__ RawRows<kHeadDim> LoadRows(const AppendParams& params, const PagedKv& kv,
                                                      const HeadBlock& block, int first) {
  using Raw = RawRows<kHeadDim>;
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  const int64_t in_kv = static_cast<int64_t>(block.kv_head) * kHeadDim + sub * kVec8;
  const int last = block.rows.count - 1 - first;
  const int stride = static_cast<int>(params.projection.row_stride);  // of at most a block's rows
  const __nv_bfloat16* row = ProjectionRow(params, block.rows.first_row + first);
  const __nv_bfloat16* key = row + params.k_column + in_kv;
  const __nv_bfloat16* value = row + params.v_column + in_kv;
  Raw raw;
#pragma unroll
  for (int i = 0; i < Raw::kRows; ++i) {
    const int offset = min(i, last) * stride;
    raw.keys[i] = *reinterpret_cast<const uint4*>(key + offset);
    raw.values[i] = *reinterpret_cast<const uint4*>(value + offset);
  }
  const int64_t shift_column = sub < Raw::kRows ? params.k_shift_column : params.v_shift_column;
  raw.shift_logit = row[min(sub % Raw::kRows, last) * stride +
                        (shift_column < 0 ? 0 : static_cast<int>(shift_column) + block.kv_head)];
  const int before = min(-1, last) * stride;
  if (params.k_shift_column >= 0) {
    raw.key_before = LoadBefore<kHeadDim>(params, kv, block, first, key + before, kv.last_k);
  }
  if (params.v_shift_column >= 0) {
    raw.value_before = LoadBefore<kHeadDim>(params, kv, block, first, value + before, kv.last_v);
  }
  return raw;
}

// Stores this lane's part of a row in the page if the row is `real`. Returns the stored part as
// bf16, after its rounding to the page's type. By all lanes.
template <int kHeadDim, typename Part>
__device__ __forceinline__ uint4 StoreInPage(const Float8& row, void* pool, int64_t in_pool,
                                             int8_t* exponent_at, bool real) {
  if constexpr (kHasExponents<Part>) {
    int exponent;
    const uint2 codes = EncodePart<kRowLanes<kHeadDim>>(row, exponent);
    if (real) {
      __stcg(static_cast<uint2*>(pool) + in_pool / kVec8, codes);
      if (in_pool % kHeadDim == 0) *exponent_at = static_cast<int8_t>(exponent);
    }
    return WidenPart(codes, exponent);
  } else {
    const uint4 bits = ToBf16x8(row);
    if (real) StoreWhole(bits, static_cast<__nv_bfloat16*>(pool) + in_pool);
    return bits;
  }
}

// Stores keys and values of the lane's rows in the page, keys also in shared memory.
template <int kHeadDim, bool kRotates, typename Part>
__device__ __forceinline__ void WriteRows(const AppendParams& params, const PagedKv& kv,
                                          const HeadBlock& block, int first, RawRows<kHeadDim>& raw,
                                          __nv_bfloat16* page_keys) {
  constexpr int kRows = RawRows<kHeadDim>::kRows, kLanes = kRowLanes<kHeadDim>;
  const int sub = static_cast<int>(threadIdx.x) % kLanes, in_head = sub * kVec8;
  const int64_t place = static_cast<int64_t>(block.place + first) * kHeadDim + in_head;
  const int64_t in_pool = static_cast<int64_t>(block.page) * kPageTokens * kHeadDim + place;
  const int token = block.place + first;
  const float eps = static_cast<float>(params.qk_norm_eps);
  const float alpha = Sigmoid(__bfloat162float(raw.shift_logit));
  const bool rotates = kRotates && params.rope_frequency != nullptr;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool real = first + i < block.rows.count;
    if (!kHasExponents<Part> && params.v_shift_column < 0) {
      if (real)
        StoreWhole(raw.values[i], static_cast<__nv_bfloat16*>(kv.values) + in_pool + i * kHeadDim);
      continue;
    }
    Float8 value = Widen(raw.values[i]);
    if (params.v_shift_column >= 0) {
      Shift(value, Widen(i == 0 ? raw.value_before : raw.values[i - 1]),
            FromLane(alpha, kRows + i, kLanes));
    }
    StoreInPage<kHeadDim, Part>(value, kv.values, in_pool + i * kHeadDim,
                                kv.ValueExponent(block.page, token + i), real);
  }
  const Float8 weight = LoadNorm<kHeadDim>(
      params.k_norm, params.k_cap, static_cast<int64_t>(block.kv_head) * kHeadDim + in_head);
  Float8 row[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    row[i] = Widen(raw.keys[i]);
    if (params.k_shift_column < 0) continue;
    Shift(row[i], Widen(i == 0 ? raw.key_before : raw.keys[i - 1]), FromLane(alpha, i, kLanes));
  }
  const bool normed = params.k_norm != nullptr;
  if (normed || params.k_cap != nullptr) {
    float squares[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) squares[i] = SumSquares(row[i]);
    const float sum = SpreadSums<kLanes>(squares);
    const float scale = normed ? NormScale<kHeadDim>(sum, eps) : CapScale(sum, weight);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of_row = FromLane(scale, i * (kLanes / kRows), kLanes);
      normed ? ScaleBy(row[i], of_row, weight) : ScaleBy(row[i], of_row);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (rotates) {
      Rotate<kHeadDim>(row[i], RotationAt<kHeadDim>(params, block.rows.position + first + i, sub));
    }
    const bool real = first + i < block.rows.count;
    const uint4 bits = StoreInPage<kHeadDim, Part>(row[i], kv.keys, in_pool + i * kHeadDim,
                                                   kv.KeyExponent(block.page, token + i), real);
    if (real) *reinterpret_cast<uint4*>(page_keys + place + i * kHeadDim) = bits;
  }
}

// The page's keys in BlockSpace, with the interface of PageKeys.
template <int kHeadDim>
struct WidenedKeys {
  const __nv_bfloat16* first;
  __device__ __forceinline__ uint4 Bits(int token, int dim) const {
    return *reinterpret_cast<const uint4*>(first + token * kHeadDim + dim);
  }
};

// The record of a full page for query head g of the group. By the whole thread block, after a
// barrier that follows keys and gates.
template <int kHeadDim, bool kGeneralBound>
__device__ __forceinline__ void WriteRecord(const AppendParams& params, const PagedKv& kv,
                                            const StepSchedule& schedule, const HeadBlock& block,
                                            int g, const float* decay,
                                            BlockSpace<kHeadDim>& space) {
  constexpr int kLanes = kRowLanes<kHeadDim>;
  static_assert(kPortions == kWarps);
  const int thread = static_cast<int>(threadIdx.x), warp = Warp(), lane = Lane();
  const int head = block.kv_head * block.group + g;
  const HeadBound<kHeadDim, kGeneralBound> bound(params.bound, head, lane % kLanes);
  const KeySums sums = SumKeys<kHeadDim, kGeneralBound>(bound, WidenedKeys<kHeadDim>{space.keys},
                                                        decay, warp * kPortionKeys, space.term);
  if (lane < kLanes) StoreVec8(sums.keys, space.key_sum[warp] + lane * kVec8);
  if (lane == 0) space.count[warp] = sums.count;
  __syncthreads();
  double* record = RecordOf(schedule, kv, block.index, head);
  for (int m = thread; m < kHeadDim; m += kThreads) {
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += static_cast<double>(space.key_sum[w][m]);
    record[kRecordHeader + m] = sum;
  }
  if (warp == kWarps - 1) {
    const double log_mass = LogSumExpOfPage(space.term);
    double count = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) count += static_cast<double>(space.count[w]);
    if (lane == 0) {
      record[kCount] = count;
      record[kLogMass] = log_mass;
    }
  }
}

// One thread block per kv head and row block, the batch's last row block first: the grid has as
// many as its prefill rows can fall into, and these are the last ones. kGeneralBound: any bound,
// and rotation; else only a diagonal bound.
template <int kHeadDim, bool kGeneralBound, typename Part>
__global__ void __launch_bounds__(kThreads, kMinBlocks<kHeadDim, kGeneralBound, Part>)
    ProjectBlocksKernel(const __grid_constant__ BatchView batch,
                        const __grid_constant__ AppendParams params,
                        const __grid_constant__ PagedKv kv,
                        const __grid_constant__ StepSchedule schedule, int group) {
  constexpr int kRows = kLaneRows<kHeadDim>, kPassRows = kThreads / kRowLanes<kHeadDim> * kRows;
  __shared__ BlockSpace<kHeadDim> space;
  extern __shared__ float decay[];  // [group, 64]: c_e - c_j
  TriggerDependents();
  WaitOnDependencies();
  HeadBlock block;
  block.index = LoadCoherent(schedule.num_blocks) - 1 - static_cast<int>(blockIdx.y);
  if (block.index < 0) return;
  const RowBlock* rows = schedule.blocks + block.index;
  const int32_t seq_before = block.index == 0 ? -1 : LoadCoherent(&rows[-1].seq);
  block.rows = {LoadCoherent(&rows->seq), LoadCoherent(&rows->slot), LoadCoherent(&rows->first_row),
                LoadCoherent(&rows->count), LoadCoherent(&rows->position)};
  if (block.rows.seq < batch.num_decodes) return;
  block.kv_head = static_cast<int>(blockIdx.x);
  block.group = group;
  block.place = block.rows.position % kPageTokens;
  const int64_t list = kv.ListIndex(block.rows.slot, params.layer, block.kv_head);
  block.page = kv.Table(list)[block.rows.position / kPageTokens];
  block.first_of_seq = block.rows.seq != seq_before;

  const int warp = Warp();
  int first = static_cast<int>(threadIdx.x) / kRowLanes<kHeadDim> * kRows;
  RawRows<kHeadDim> raw = LoadRows<kHeadDim>(params, kv, block, first);
#pragma unroll 1
  for (int g = warp; g < group; g += kWarps) {
    const RawGates gates = LoadGates(params, block, g);
    WriteGates(params, kv, schedule, block, g, gates, decay + g * kPageTokens);
  }
#pragma unroll 1
  for (int pass = 0;;) {
    WriteRows<kHeadDim, kGeneralBound, Part>(params, kv, block, first, raw, space.keys);
    pass += kPassRows;
    if (kPassRows >= kPageTokens || pass >= block.rows.count) break;
    first += kPassRows;
    raw = LoadRows<kHeadDim>(params, kv, block, first);
  }
  if (block.place + block.rows.count < kPageTokens || params.acp == AcpMode::kOff) return;

  // Keys that were in the page already.
  const PageKeys<kHeadDim, Part> keys(kv, block.page);
  for (int i = static_cast<int>(threadIdx.x) * kVec8; i < block.place * kHeadDim;
       i += kThreads * kVec8) {
    *reinterpret_cast<uint4*>(space.keys + i) = keys.Bits(i / kHeadDim, i % kHeadDim);
  }
  __syncthreads();
  for (int g = 0; g < group; ++g) {
    WriteRecord<kHeadDim, kGeneralBound>(params, kv, schedule, block, g, decay + g * kPageTokens,
                                         space);
    __syncthreads();
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepSchedule& schedule, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.kv_heads),
                  static_cast<unsigned>(MaxPrefillBlocks(batch)));
  const size_t decay_bytes = static_cast<size_t>(kv.shape.group()) * kPageTokens * sizeof(float);
  const bool plain = IsDiagonal(params.bound) || params.acp == AcpMode::kOff;
  return DispatchPart(kv.shape.dtype, [&]<typename Part>() {
    const auto kernel = plain && params.rope_frequency == nullptr
                            ? ProjectBlocksKernel<kHeadDim, false, Part>
                            : ProjectBlocksKernel<kHeadDim, true, Part>;
    return Launch(kernel, grid, kThreads, decay_bytes, stream, batch, params, kv, schedule,
                  kv.shape.group());
  });
}

}  // namespace

cudaError_t ProjectBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                          const StepSchedule& schedule, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, schedule, stream);
  });
}

}  // namespace fox::cuda
