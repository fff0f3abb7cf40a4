// Append of any batch, first kernel of two: every row block by itself. Rows go into pages, gates
// relative to the page's start; what a page that becomes full adds to the running sums goes into a
// record of StepWork::fold. Nothing that another row block reads is written here; the rest, in
// order, is append_accumulate.cu.
#include "kernels/acp.h"
#include "kernels/core/check.h"
#include "kernels/cuda/append_fold.cuh"
#include "kernels/cuda/append_kernels.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

template <int kHeadDim>
struct BlockSpace {
  alignas(16) __nv_bfloat16 keys[kPageTokens * kHeadDim];  // of the page, by place
  float decay[kPageTokens], term[kPageTokens];
  float key_sum[kWarps][kHeadDim];
  float count[kWarps], max_square[kWarps];
  double page_decay[kMaxAppendGroup];  // from the page's start to the block's last row
};

// A row block and one kv head of it.
struct HeadBlock {
  RowBlock rows;
  int64_t index;  // of the block
  int kv_head;
  int place;     // of the first row in its page
  int32_t page;  // id
  bool first_of_seq;
};

// Log gates of a query head, added up from the page's start: lane i holds rows 2i and 2i + 1.
__device__ __forceinline__ void WriteGates(const AppendParams& params, const PagedKv& kv,
                                           const StepWork& work, const HeadBlock& block, int g,
                                           double* page_decay) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = GroupOf(kv);
  const int head = block.kv_head * group + g, row = 2 * lane;
  const int64_t summary = static_cast<int64_t>(block.page) * group + g;
  double start = 0;  // a block that begins inside a page is its sequence's first: c is known
  if (block.place > 0) {
    start = kv.c[HeadIndex(kv, block.rows.slot, params.layer, head)] - kv.c_base[summary];
  }
  const __nv_bfloat16* at = ProjectionRow(params, block.rows.first_row + row);
  double one = 0, two = 0;
  if (row < block.rows.count) one = static_cast<double>(LogGate(params, at, head));
  if (row + 1 < block.rows.count) {
    two = static_cast<double>(LogGate(params, at + params.projection.row_stride, head));
  }
  double sum = one + two;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double before = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += before;
  }
  double before = __shfl_up_sync(kAllLanes, sum, 1);
  if (lane == 0) before = 0;
  float* local = static_cast<float*>(kv.local_gate) + summary * kPageTokens + block.place;
  if (row < block.rows.count) local[row] = static_cast<float>(start + (before + one));
  if (row + 1 < block.rows.count) local[row + 1] = static_cast<float>(start + sum);
  if (lane == kWarp - 1) {
    RecordOf(work, kv, block.index, head)[kLogGate] = sum;
    *page_decay = start + sum;
  }
}

// A row's key or value as it is loaded, so that all of a row's loads are under way before the first
// is waited for. The rows that last_k and last_v hold came from bf16, so they fit into it again.
struct RawRow {
  uint4 now{}, before{};
  __nv_bfloat16 shift_logit{};
};

template <int kHeadDim>
__device__ __forceinline__ RawRow LoadRaw(const AppendParams& params, const PagedKv& kv,
                                          const HeadBlock& block, int r, int64_t column,
                                          int64_t shift_column, void* last) {
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  const int64_t in_head = sub * kOctet;
  const __nv_bfloat16* row = ProjectionRow(params, block.rows.first_row + r);
  const __nv_bfloat16* at = row + column + static_cast<int64_t>(block.kv_head) * kHeadDim + in_head;
  RawRow raw;
  raw.now = *reinterpret_cast<const uint4*>(at);
  if (shift_column < 0) return raw;
  raw.shift_logit = row[shift_column + block.kv_head];
  if (r > 0 || !block.first_of_seq) {
    raw.before = *reinterpret_cast<const uint4*>(at - params.projection.row_stride);
  } else if (block.rows.position > 0) {
    raw.before = RoundOctet(
        LoadOctet(LastRow(kv, last, block.rows.slot, params.layer, block.kv_head) + in_head));
  }
  return raw;
}

__device__ __forceinline__ Octet Shifted(const RawRow& raw, int64_t shift_column) {
  Octet now = Widen(raw.now);
  if (shift_column >= 0) Shift(now, Widen(raw.before), Sigmoid(__bfloat162float(raw.shift_logit)));
  return now;
}

// Keys, values and queries of the rows.
template <int kHeadDim>
__device__ __forceinline__ void WriteRows(const AppendParams& params, const PagedKv& kv,
                                          const HeadBlock& block, __nv_bfloat16* page_keys) {
  constexpr int kLanes = kRowLanes<kHeadDim>;
  const int sub = static_cast<int>(threadIdx.x) % kLanes, group = GroupOf(kv);
  const int64_t in_head = sub * kOctet;
  const int64_t page = static_cast<int64_t>(block.page) * kPageTokens * kHeadDim;
  const float eps = static_cast<float>(params.qk_norm_eps);
  const float* q_weight = static_cast<const float*>(params.q_norm);
  const float* k_weight = static_cast<const float*>(params.k_norm);
  if (q_weight != nullptr) q_weight += static_cast<int64_t>(block.kv_head) * group * kHeadDim;
  if (k_weight != nullptr) k_weight += static_cast<int64_t>(block.kv_head) * kHeadDim;
  const bool rotates = params.rope_frequency != nullptr;
  for (int first = 0; first < block.rows.count; first += kThreads / kLanes) {
    const int r = first + static_cast<int>(threadIdx.x) / kLanes;
    const bool there = r < block.rows.count;
    __nv_bfloat16* queries = ProjectionRow(params, block.rows.first_row + r) + params.q_column +
                             static_cast<int64_t>(block.kv_head) * group * kHeadDim + in_head;
    RawRow raw_key, raw_value;
    uint4 raw_query{};
    if (there) {
      raw_key = LoadRaw<kHeadDim>(params, kv, block, r, params.k_column, params.k_shift_column,
                                  kv.last_k);
      raw_value = LoadRaw<kHeadDim>(params, kv, block, r, params.v_column, params.v_shift_column,
                                    kv.last_v);
      raw_query = *reinterpret_cast<const uint4*>(queries);
    }
    Rotation rotation;
    if (rotates) {
      rotation = RotationAt<kHeadDim>(params.rope_frequency, block.rows.position + r, sub);
    }
    Octet key = Shifted(raw_key, params.k_shift_column);
    Normalize<kHeadDim>(key, k_weight == nullptr ? nullptr : k_weight + in_head, eps);
    if (rotates) Rotate<kHeadDim>(key, rotation);
    if (there) {
      const int64_t place = static_cast<int64_t>(block.place + r) * kHeadDim + in_head;
      const uint4 bits = RoundOctet(key);
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(kv.keys) + page + place) = bits;
      *reinterpret_cast<uint4*>(page_keys + place) = bits;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(kv.values) + page + place) =
          RoundOctet(Shifted(raw_value, params.v_shift_column));
    }
    Octet query = Widen(raw_query);
    for (int g = 0; g < group; ++g) {
      if (g > 0 && there) query = LoadOctet(queries + g * kHeadDim);
      const float* weight = q_weight == nullptr ? nullptr : q_weight + g * kHeadDim + in_head;
      Normalize<kHeadDim>(query, weight, eps);
      if (rotates) Rotate<kHeadDim>(query, rotation);
      if (there) *reinterpret_cast<uint4*>(queries + g * kHeadDim) = RoundOctet(query);
    }
  }
}

// The record of a full page for query head g of the group. The thread block calls together, after a
// barrier behind keys and gates.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ void WriteRecord(const AppendParams& params, const PagedKv& kv,
                                            const StepWork& work, const HeadBlock& block, int g,
                                            BlockSpace<kHeadDim>& space) {
  constexpr int kLanes = kRowLanes<kHeadDim>, kWarpKeys = kPageTokens / kWarps;
  static_assert(kWarpKeys % (kWarp / kLanes) == 0);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int group = GroupOf(kv), head = block.kv_head * group + g;
  const float* local = static_cast<const float*>(kv.local_gate) +
                       (static_cast<int64_t>(block.page) * group + g) * kPageTokens;
  if (thread < kPageTokens) {
    space.decay[thread] =
        static_cast<float>(space.page_decay[g] - static_cast<double>(local[thread]));
  }
  __syncthreads();
  const HeadBound<kHeadDim, kGeneral> bound(params.bound, head, lane % kLanes);
  const KeySums sums = SumKeys<kHeadDim, kGeneral>(bound, space.keys, space.decay, warp * kWarpKeys,
                                                   kWarpKeys, space.term);
  if (lane < kLanes) StoreOctet(sums.keys, space.key_sum[warp] + lane * kOctet);
  if (lane == 0) {
    space.count[warp] = sums.count;
    space.max_square[warp] = sums.max_square;
  }
  __syncthreads();
  double* record = RecordOf(work, kv, block.index, head);
  for (int m = thread; m < kHeadDim; m += kThreads) {
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += static_cast<double>(space.key_sum[w][m]);
    record[kRecordHeader + m] = sum;
  }
  if (warp == kWarps - 1) {
    const double log_mass = LogSumExpOfPage(space.term);
    double count = 0;
    float max_square = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      count += static_cast<double>(space.count[w]);
      max_square = fmaxf(max_square, space.max_square[w]);
    }
    if (lane == 0) {
      record[kCount] = count;
      record[kLogMass] = log_mass;
      record[kKeyNorm] = sqrt(static_cast<double>(max_square));
    }
  }
}

// A thread block a row block and kv head.
template <int kHeadDim, bool kGeneral>
__global__ void __launch_bounds__(kThreads, kGeneral || kHeadDim == 16 ? 4 : 6)
    ProjectBlocksKernel(const BatchView batch, const AppendParams params, const PagedKv kv,
                        const StepWork work) {
  __shared__ BlockSpace<kHeadDim> space;
  LetNextStart();
  WaitForPrevious();
  HeadBlock block;
  block.index = blockIdx.y;
  if (block.index >= *work.num_blocks) return;
  block.rows = work.blocks[block.index];
  block.kv_head = static_cast<int>(blockIdx.x);
  block.place = block.rows.position % kPageTokens;
  const int64_t list = ListIndex(kv, block.rows.slot, params.layer, block.kv_head);
  block.page = Table(kv, list)[block.rows.position / kPageTokens];
  block.first_of_seq = block.rows.first_row == batch.row_begin[block.rows.seq];

  const int group = GroupOf(kv);
  for (int g = static_cast<int>(threadIdx.x) / kWarp; g < group; g += kWarps) {
    WriteGates(params, kv, work, block, g, space.page_decay + g);
  }
  WriteRows<kHeadDim>(params, kv, block, space.keys);
  if (block.place + block.rows.count < kPageTokens || params.acp == AcpMode::kOff) return;

  // Keys that were in the page already.
  const __nv_bfloat16* keys = static_cast<const __nv_bfloat16*>(kv.keys) +
                              static_cast<int64_t>(block.page) * kPageTokens * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x) * kOctet; i < block.place * kHeadDim;
       i += kThreads * kOctet) {
    *reinterpret_cast<uint4*>(space.keys + i) = *reinterpret_cast<const uint4*>(keys + i);
  }
  __syncthreads();
  for (int g = 0; g < group; ++g) {
    WriteRecord<kHeadDim, kGeneral>(params, kv, work, block, g, space);
    __syncthreads();
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepWork& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.kv_heads),
                  static_cast<unsigned>(MaxRowBlocks(batch.num_rows, batch.num_seqs)));
  return IsDiagonal(params.bound) || params.acp == AcpMode::kOff
             ? Launch(ProjectBlocksKernel<kHeadDim, false>, grid, kThreads, 0, stream, batch,
                      params, kv, work)
             : Launch(ProjectBlocksKernel<kHeadDim, true>, grid, kThreads, 0, stream, batch, params,
                      kv, work);
}

}  // namespace

cudaError_t ProjectBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                          const StepWork& work, cudaStream_t stream) {
  switch (kv.shape.head_dim) {
    case 16:
      return LaunchFor<16>(batch, params, kv, work, stream);
    case 32:
      return LaunchFor<32>(batch, params, kv, work, stream);
    case 64:
      return LaunchFor<64>(batch, params, kv, work, stream);
    case 128:
      return LaunchFor<128>(batch, params, kv, work, stream);
    default:
      FOX_CHECK(false);
      return cudaErrorInvalidValue;
  }
}

}  // namespace fox::cuda
