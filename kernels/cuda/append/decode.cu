// Append where every sequence has one row: one kernel, a warp for each (sequence, kv head). The
// warp's lanes process the key, the value and the queries of the group in parallel. Where the row
// ends a page, the same warp accumulates it, as kernels/cpu/append.cc does.
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

// One token of one kv head.
struct Token {
  int slot;
  int kv_head;
  int64_t row;
  int64_t position;
  int drafts;       // distance behind the sequence's first row: 0 unless it is a draft
  int pos_in_page;  // in its page
  int32_t page;     // id
};

// The gate of one query head of the group, in the lane of the head's place in the group.
struct HeadGate {
  float log_gate = 0;
  double c = 0;     // before, then with this token
  double base = 0;  // of the page
};

// Addresses of one lane's input in the projection; if it has none, or the row is not shifted,
// another readable address.
struct RowPlace {
  const uint4* now;
  const __nv_bfloat16* shift;  // logit of the share of the last row
  const __nv_bfloat16* gate;   // GateLogitAt of the query head in the lane's place of the group
};
struct RowInput {
  uint4 now;
  __nv_bfloat16 shift, gate;
};

// One lane's state from earlier steps.
struct State {
  int32_t page;   // the token's
  float* last;    // where the lane's part of the key or value row goes, null if it is not shifted
  Float8 before;  // the row of the token before; zeros before the first token
  double c;       // cumulative log gate, and that before the page's first key: of the query head in
  double base;    // the lane's place of the group
};

__device__ __forceinline__ void StoreGate(const AppendParams& params, const PagedKv& kv,
                                          const Token& token, HeadGate& gate) {
  const int g = Lane(), group = kv.shape.group();
  gate.c += static_cast<double>(gate.log_gate);
  if (g >= group) return;
  const int64_t summary = static_cast<int64_t>(token.page) * group + g;
  if (token.pos_in_page == 0) kv.page_cum_log_f[summary] = gate.base;
  kv.LogFOffsets<float>(summary)[token.pos_in_page] = static_cast<float>(gate.c - gate.base);
  const int after = kv.After(token.slot, token.position + 1);
  kv.cum_log_f[kv.HeadIndex(after, params.layer, token.kv_head * group + g)] = gate.c;
}

// A token's parts are rows of head_dim: 0 is the key, 1 the value, 2 + g query g of the group. A
// lane may have a part that does not exist.
__device__ __forceinline__ bool IsQuery(int part) { return part >= 2; }
__device__ __forceinline__ bool HasPart(const PagedKv& kv, int part) {
  return part < 2 + kv.shape.group();
}

// The query head in the lane's place of the group; past the group's end, its last one.
__device__ __forceinline__ int LaneHead(const PagedKv& kv, int kv_head) {
  const int group = kv.shape.group();
  return kv_head * group + min(Lane(), group - 1);
}

// Index of this lane's first dimension of the part's head in an array [heads * head_dim].
template <int kHeadDim>
__device__ __forceinline__ int64_t DimsOf(const PagedKv& kv, int kv_head, int part) {
  const int head = IsQuery(part) ? kv_head * kv.shape.group() + part - 2 : kv_head;
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  return static_cast<int64_t>(head) * kHeadDim + sub * kVec8;
}

__device__ __forceinline__ const void* NormOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_norm : part == 0 ? params.k_norm : nullptr;
}
__device__ __forceinline__ const float* CapsOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_cap : part == 0 ? params.k_cap : nullptr;
}

// Constants: may be called before WaitOnDependencies().
template <int kHeadDim>
__device__ __forceinline__ Float8 LoadWeights(const AppendParams& params, const PagedKv& kv,
                                              int kv_head, int part) {
  if (!HasPart(kv, part)) return {};
  return LoadNorm<kHeadDim>(NormOf(params, part), CapsOf(params, part),
                            DimsOf<kHeadDim>(kv, kv_head, part));
}

__device__ __forceinline__ int64_t ColumnOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_column : part == 0 ? params.k_column : params.v_column;
}
__device__ __forceinline__ int64_t ShiftColumnOf(const AppendParams& params, int part) {
  return IsQuery(part) ? -1 : part == 0 ? params.k_shift_column : params.v_shift_column;
}

// This lane's dimensions of a kept raw row of keys or values.
template <int kHeadDim>
__device__ __forceinline__ float* KeptOf(const AppendParams& params, const PagedKv& kv,
                                         const Token& token, int slot, void* rows) {
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  return LastRow(kv, rows, slot, params.layer, token.kv_head) + sub * kVec8;
}
// This lane's dimensions of the raw last row after `tokens` tokens.
template <int kHeadDim>
__device__ __forceinline__ float* LastOf(const AppendParams& params, const PagedKv& kv,
                                         const Token& token, int part, int64_t tokens) {
  return KeptOf<kHeadDim>(params, kv, token, kv.After(token.slot, tokens),
                          part == 0 ? kv.last_k : kv.last_v);
}

// c before the step: of the query head in the lane's place of the group, which exists.
__device__ __forceinline__ const double* CumLogFOf(const AppendParams& params, const PagedKv& kv,
                                                   const Token& token) {
  const int before = kv.After(token.slot, token.position - token.drafts);
  return kv.cum_log_f +
         kv.HeadIndex(before, params.layer, token.kv_head * kv.shape.group() + Lane());
}

// Prefetches a token's state into the second-level cache, from which the step's weights have
// evicted it. Reads only a page id, as a hint: may be called before WaitOnDependencies().
template <int kHeadDim>
__device__ __forceinline__ void PrefetchState(const AppendParams& params, const PagedKv& kv,
                                              const Token& token) {
  const int lane = Lane(), group = kv.shape.group();
  const int part = lane / kRowLanes<kHeadDim>;
  if (!IsQuery(part) && ShiftColumnOf(params, part) >= 0) {
    Prefetch(LastOf<kHeadDim>(params, kv, token, part, token.position));
  }
  if (lane >= group) return;
  Prefetch(CumLogFOf(params, kv, token));
  const int32_t page = __ldcg(kv.Table(kv.ListIndex(token.slot, params.layer, token.kv_head)) +
                              token.position / kPageTokens);
  if (page < 0 || page >= kv.shape.num_pages) return;
  Prefetch(kv.page_cum_log_f + static_cast<int64_t>(page) * group + lane);
}

template <int kHeadDim>
__device__ __forceinline__ RowPlace PlaceOf(const AppendParams& params, const PagedKv& kv,
                                            const Token& token, int part) {
  const __nv_bfloat16* row = ProjectionRow(params, token.row);
  RowPlace place{reinterpret_cast<const uint4*>(row), row,
                 GateLogitAt(params, token.row, LaneHead(kv, token.kv_head))};
  if (!HasPart(kv, part)) return place;
  place.now = reinterpret_cast<const uint4*>(row + ColumnOf(params, part) +
                                             DimsOf<kHeadDim>(kv, token.kv_head, part));
  const int64_t shift_column = ShiftColumnOf(params, part);
  if (shift_column >= 0) place.shift = row + shift_column + token.kv_head;
  return place;
}
// Not by __ldcg, which for bf16 is not volatile: the compiler may move it before the wait.
__device__ __forceinline__ RowInput LoadInput(const RowPlace& place) {
  return {__ldcg(place.now), LoadCoherent(place.shift), LoadCoherent(place.gate)};
}

// Bypasses the first-level cache: may be called before WaitOnDependencies() where all kernels
// before the projection have ended. `part`: the lane's first.
template <int kHeadDim>
__device__ __forceinline__ State LoadState(const AppendParams& params, const PagedKv& kv,
                                           const Token& token, int part) {
  const int g = Lane(), group = kv.shape.group();
  State state{};
  state.page = __ldcg(kv.Table(kv.ListIndex(token.slot, params.layer, token.kv_head)) +
                      token.position / kPageTokens);
  if (HasPart(kv, part) && ShiftColumnOf(params, part) >= 0) {
    state.last = LastOf<kHeadDim>(params, kv, token, part, token.position + 1);
    if (token.position > 0 && token.drafts == 0) {
      const float4* last = reinterpret_cast<const float4*>(
          LastOf<kHeadDim>(params, kv, token, part, token.position));
      const float4 low = __ldcg(last), high = __ldcg(last + 1);
      state.before = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
  }
  if (g >= group) return state;
  state.c = __ldcg(CumLogFOf(params, kv, token));
  state.base = state.c;
  if (token.pos_in_page > token.drafts) {
    state.base = __ldcg(kv.page_cum_log_f + static_cast<int64_t>(state.page) * group + g);
  }
  return state;
}

// Advances a draft's state by the rows before it, which are in the projection.
__device__ __forceinline__ void AddRowsBefore(const AppendParams& params, const Token& token,
                                              const RowPlace& place, float gate_bias,
                                              State& state) {
  const int64_t stride = params.projection.row_stride;
  for (int64_t r = token.drafts; r > 0; --r) {
    const float logit = GateLogit(params, LoadCoherent(place.gate - r * stride));
    state.c += static_cast<double>(LogGate(params, logit + gate_bias));
  }
  if (state.last == nullptr) return;
  const auto* now = reinterpret_cast<const __nv_bfloat16*>(place.now);
  state.before = Widen(__ldcg(reinterpret_cast<const uint4*>(now - stride)));
}

template <int kHeadDim, typename Part>
__device__ __forceinline__ void AppendRow(const AppendParams& params, const PagedKv& kv,
                                          const Token& token, int part, const RowInput& input,
                                          const State& state, const Float8& weights, bool rotates,
                                          const Rotation& rotation) {
  const bool there = HasPart(kv, part), shifts = state.last != nullptr;
  const Float8 raw = Widen(input.now);
  Float8 shifted = raw;
  Shift(shifted, state.before, Sigmoid(__bfloat162float(input.shift)));
  Float8 o = shifts ? shifted : raw;
  Float8 normal = o;
  NormalizeBy<kHeadDim>(normal, weights, static_cast<float>(params.qk_norm_eps));
  if (NormOf(params, part) != nullptr) o = normal;
  if (params.q_cap != nullptr || params.k_cap != nullptr) {
    Float8 capped = o;
    CapNorm<kHeadDim>(capped, weights);
    if (CapsOf(params, part) != nullptr) o = capped;
  }
  if (rotates) {
    Float8 rotated = o;
    Rotate<kHeadDim>(rotated, rotation);
    if (part != 1) o = rotated;
  }
  int exponent = 0;
  uint2 codes{};
  if constexpr (kHasExponents<Part>) codes = EncodePart<kRowLanes<kHeadDim>>(o, exponent);
  if (!there) return;
  const int64_t dims = DimsOf<kHeadDim>(kv, token.kv_head, part);
  const int64_t in_page =
      (static_cast<int64_t>(token.page) * kPageTokens + token.pos_in_page) * kHeadDim +
      dims % kHeadDim;
  void* const pool = part == 0 ? kv.keys : kv.values;
  if (kHasExponents<Part> && !IsQuery(part)) {
    static_cast<uint2*>(pool)[in_page / kVec8] = codes;
    if (dims % kHeadDim == 0) {
      *kv.KeyExponent(token.page, part * kPageTokens + token.pos_in_page) =
          static_cast<int8_t>(exponent);
    }
  } else {
    __nv_bfloat16* to = IsQuery(part) ? ProjectionRow(params, token.row) + params.q_column + dims
                                      : static_cast<__nv_bfloat16*>(pool) + in_page;
    *reinterpret_cast<uint4*>(to) = ToBf16x8(o);
  }
  if (!shifts) return;
  StoreVec8(raw, state.last);
  if (token.pos_in_page < kPageTokens - 1) return;
  void* const page_end = part == 0 ? kv.page_end_k : kv.page_end_v;
  StoreVec8(raw, KeptOf<kHeadDim>(params, kv, token, token.slot, page_end));
}

// All parts of the token, kRows at a time; `input` and `weights` belong to the first kRows parts,
// which include all shifted ones. The next parts are loaded while the current ones are computed.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void AppendRows(const AppendParams& params, const PagedKv& kv,
                                           const Token& token, RowInput input, State state,
                                           Float8 weights, bool rotates, const Rotation& rotation) {
  constexpr int kRows = kWarp / kRowLanes<kHeadDim>;
  static_assert(kRows >= 2);
  const int parts = 2 + kv.shape.group();
  const int lane_row = Lane() / kRowLanes<kHeadDim>;
  for (int part = lane_row, first = 0;; part += kRows) {
    first += kRows;
    RowInput next_input{};
    Float8 next_weights{};
    if (first < parts) {
      next_input = LoadInput(PlaceOf<kHeadDim>(params, kv, token, part + kRows));
      next_weights = LoadWeights<kHeadDim>(params, kv, token.kv_head, part + kRows);
    }
    AppendRow<kHeadDim, Part>(params, kv, token, part, input, state, weights, rotates, rotation);
    if (first >= parts) return;
    state.last = nullptr;
    input = next_input;
    weights = next_weights;
  }
}

// A warp's shared memory for accumulating a page.
template <int kHeadDim>
struct PageSumsScratch {
  float decay[kPageTokens], term[kPageTokens];
  double keys[kHeadDim];            // N of the page
  alignas(16) float sum[kHeadDim];  // N of all keys
};

// Sums over the page's own keys, relative to its end.
struct PageSums {
  double count, log_mass;
};

// Sums the page that the token completed, for one query head; N goes to space.keys. By the whole
// warp, after the token's rows and gates are in the page and the space is no longer read.
template <int kHeadDim, bool kGeneralBound, typename Part>
__device__ __forceinline__ PageSums SumPage(const HeadBound<kHeadDim, kGeneralBound>& bound,
                                            const PagedKv& kv, const Token& token,
                                            const float* local, double page_decay,
                                            PageSumsScratch<kHeadDim>& space) {
  for (int j = Lane(); j < kPageTokens; j += kWarp) {
    space.decay[j] = static_cast<float>(page_decay - static_cast<double>(local[j]));
  }
  __syncwarp();
  const PageKeys<kHeadDim, Part> keys(kv, token.page);
  double count = 0;
#pragma unroll 1
  for (int first = 0; first < kPageTokens; first += kPortionKeys) {
    const KeySums sums = SumKeys(bound, keys, space.decay, first, space.term);
    count += static_cast<double>(sums.count);
    if (Lane() >= kRowLanes<kHeadDim>) continue;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      double& sum = space.keys[Lane() * kVec8 + i];
      sum = (first == 0 ? 0 : sum) + static_cast<double>(sums.keys.x[i]);
    }
  }
  __syncwarp();
  return {count, LogSumExpOfPage(space.term)};
}

// Accumulates the page that the token completed into the state of query head g of the group. By the
// whole warp.
template <int kHeadDim, bool kGeneralBound, typename Part>
__device__ __forceinline__ void AccumulatePage(const AppendParams& params, const PagedKv& kv,
                                               const Token& token, int g, double c_end, double base,
                                               PageSumsScratch<kHeadDim>& space) {
  const int group = kv.shape.group(), head = token.kv_head * group + g;
  const int sub = Lane() % kRowLanes<kHeadDim>;
  const float* local = kv.LogFOffsets<float>(static_cast<int64_t>(token.page) * group + g);
  const double page_decay = c_end - base, paid = OffsetRounding(page_decay);
  const HeadBound<kHeadDim, kGeneralBound> bound(params.bound, head, sub);
  __syncwarp();
  const PageSums page =
      SumPage<kHeadDim, kGeneralBound, Part>(bound, kv, token, local, page_decay, space);

  const int64_t state = kv.HeadIndex(token.slot, params.layer, head);
  const double decay_factor = exp(page_decay), weight = exp(-paid);
  const double decay_sum = fma(kv.decay_sum[state], decay_factor, __dmul_rn(page.count, weight));
  double* key_sum = kv.key_sum + state * kHeadDim;
  for (int m = Lane(); m < kHeadDim; m += kWarp) {
    const double sum = fma(key_sum[m], decay_factor, __dmul_rn(space.keys[m], weight));
    key_sum[m] = sum;
    space.sum[m] = static_cast<float>(sum);
  }
  __syncwarp();
  const float sum_bound = bound(LoadVec8(space.sum + sub * kVec8), -1.0f);
  if (Lane() != 0) return;
  PageBounds before = PageBounds::OfNone();
  if (token.position >= kPageTokens) {
    const int32_t* table = kv.Table(kv.ListIndex(token.slot, params.layer, token.kv_head));
    const int64_t page_before = table[token.position / kPageTokens - 1];
    before = BoundsAt(kv, params.acp, page_before * group + g);
  }
  const double log_mass = LogAddExp(kv.log_mass[state] + page_decay, page.log_mass + paid);
  kv.decay_sum[state] = decay_sum;
  kv.log_mass[state] = log_mass;
  StoreBounds(kv, params.acp, static_cast<int64_t>(token.page) * group + g,
              BoundPage(params, head, token.position, c_end, log_mass, decay_sum,
                        [=] { return sum_bound; }),
              before);
}

template <int kHeadDim, bool kGeneralBound, typename Part>
__global__ void __launch_bounds__(kThreads, kHeadDim > 64 && kGeneralBound ? 3 : 4)
    AppendDecodeKernel(const BatchView batch, const AppendParams params, const PagedKv kv,
                       bool reads_early) {
  __shared__ PageSumsScratch<kHeadDim> space[kWarps];
  constexpr int kLanes = kRowLanes<kHeadDim>;
  if (reads_early) TriggerDependents();
  const int warp = Warp();
  const int lane = Lane();
  const int seq = static_cast<int>(blockIdx.y), group = kv.shape.group();
  Token token;
  token.kv_head = static_cast<int>(blockIdx.x) * kWarps + warp;
  // Before the wait: bypasses the first-level cache, which may hold an earlier step's values.
  token.row = seq;  // every sequence has one
  token.slot = __ldcg(batch.slot + seq);
  token.position = __ldcg(batch.position + seq);
  token.drafts = 0;
  if (kv.shape.history > 1 && token.slot >= 0) {
    const int32_t* slots = batch.slot + seq;
    while (token.drafts < seq && __ldcg(slots - token.drafts - 1) == token.slot) ++token.drafts;
  }
  token.pos_in_page = static_cast<int>(token.position % kPageTokens);
  const bool there = token.kv_head < kv.shape.kv_heads && token.slot >= 0;
  Float8 weights{};
  Rotation rotation;
  const bool rotates = params.rope_frequency != nullptr;
  const int part = lane / kLanes;
  State state;
  RowPlace place{};
  float gate_bias = 0;
  // Everything that does not depend on the projection; after the wait a row is one load away.
  if (there) {
    place = PlaceOf<kHeadDim>(params, kv, token, part);
    gate_bias = GateBias(params, LaneHead(kv, token.kv_head));
    weights = LoadWeights<kHeadDim>(params, kv, token.kv_head, part);
    if (reads_early) {
      state = LoadState<kHeadDim>(params, kv, token, part);
    } else {
      PrefetchState<kHeadDim>(params, kv, token);
    }
    if (rotates) {
      rotation = RotationAt<kHeadDim>(params, token.position, lane % kLanes);
    }
  }
  WaitOnDependencies();
  if (!reads_early) TriggerDependents();
  if (!there) return;
  const RowInput input = LoadInput(place);
  if (!reads_early) state = LoadState<kHeadDim>(params, kv, token, part);
  token.page = state.page;
  if (token.drafts > 0) AddRowsBefore(params, token, place, gate_bias, state);
  HeadGate gate{LogGate(params, GateLogit(params, input.gate) + gate_bias), state.c, state.base};
  AppendRows<kHeadDim, Part>(params, kv, token, input, state, weights, rotates, rotation);
  StoreGate(params, kv, token, gate);

  if (token.pos_in_page != kPageTokens - 1 || params.acp == AcpMode::kOff) return;
  for (int g = 0; g < group; ++g) {
    const double c_end = FromLane(gate.c, g);
    const double base = FromLane(gate.base, g);
    AccumulatePage<kHeadDim, kGeneralBound, Part>(params, kv, token, g, c_end, base, space[warp]);
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      bool reads_early, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((kv.shape.kv_heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(batch.num_seqs));
  const bool diagonal = IsDiagonal(params.bound) || params.acp == AcpMode::kOff;
  return DispatchPart(kv.shape.dtype, [&]<typename Part>() {
    return Launch(diagonal ? AppendDecodeKernel<kHeadDim, false, Part>
                           : AppendDecodeKernel<kHeadDim, true, Part>,
                  grid, kThreads, SmemConfig(0, batch.num_rows <= kOverlapRows), stream, batch,
                  params, kv, reads_early);
  });
}

}  // namespace

cudaError_t AppendDecode(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                         bool reads_early, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, reads_early, stream);
  });
}

}  // namespace fox::cuda
