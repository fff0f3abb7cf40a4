// Append where every sequence has one row: one kernel. The lanes of a warp process in parallel the
// key, the value and the queries of a (sequence, kv head), as many as a warp has room for; further
// warps have further queries. A page that the row fills is accumulated by Evict (page_end.cuh).
//
// The projection's end comes late in a step's chain of kernels, and the code behind the wait runs
// once, so it is fetched from afar: it is short and without divisions, and addresses are computed
// before the wait.
#include <cstddef>

#include "kernels/cuda/append/append.h"
#include "kernels/cuda/append/decode_token.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

using namespace append_decode;

// The gate of one query head of the group, in the lane of the head's place in the group.
struct HeadGate {
  float log_gate = 0;
  double c = 0;     // before, then with this token
  double base = 0;  // of the page
};

__device__ __forceinline__ void StoreGate(const Token& token, const Outputs& to, HeadGate& gate,
                                          bool stores) {
  gate.c += static_cast<double>(gate.log_gate);
  if (Lane() >= token.group || !stores) return;
  if (token.pos_in_page == 0) *InPage(to.base, token.page, token.group) = gate.base;
  *InPage(to.offset, token.page, token.group * kPageTokens) =
      static_cast<float>(gate.c - gate.base);
  *to.c = gate.c;
}

// Appends the lane's part of the row: shifts, normalizes and rotates it, and stores it if `stores`.
// The whole grid takes the same branches around the operations that the model lacks, so that their
// instructions are not fetched.
template <int kHeadDim, typename Part>
__device__ __forceinline__ void AppendRow(const AppendParams& params, int part,
                                          const RowInput& input, const State& state,
                                          const Float8& weights, const Rotation& rotation,
                                          const Outputs& to, bool stores) {
  const Float8 raw = Widen(input.now);
  Float8 o = raw;
  if (params.k_shift_column >= 0 || params.v_shift_column >= 0) {
    Float8 shifted = raw;
    Shift(shifted, state.before, Sigmoid(__bfloat162float(input.shift)));
    if (to.last != nullptr) o = shifted;
  }
  if (params.q_norm != nullptr || params.k_norm != nullptr) {
    Float8 normal = o;
    NormalizeBy<kHeadDim>(normal, weights, static_cast<float>(params.qk_norm_eps));
    if (NormOf(params, part) != nullptr) o = normal;
  }
  if (params.q_cap != nullptr || params.k_cap != nullptr) {
    Float8 capped = o;
    CapNorm<kHeadDim>(capped, weights);
    if (CapsOf(params, part) != nullptr) o = capped;
  }
  if (params.rope_frequency != nullptr) {
    Float8 rotated = o;
    Rotate<kHeadDim>(rotated, rotation);
    if (part != 1) o = rotated;
  }
  int exponent = 0;
  uint2 codes{};
  if constexpr (kHasExponents<Part>) codes = EncodePart<kRowLanes<kHeadDim>>(o, exponent);
  if (to.row == nullptr || !stores) return;
  std::byte* const row = to.row + state.page * to.page_bytes;
  if (kHasExponents<Part> && !IsQuery(part)) {
    *reinterpret_cast<uint2*>(row) = codes;
    if (Lane() % kRowLanes<kHeadDim> == 0) {
      *InPage(to.exponent, state.page, 2 * kPageTokens) = static_cast<int8_t>(exponent);
    }
  } else {
    *reinterpret_cast<uint4*>(row) = ToBf16x8(o);
  }
  if (to.last != nullptr) StoreVec8(raw, to.last);
  if (to.page_end != nullptr) StoreVec8(raw, to.page_end);
}

// The parts of a warp, which are those of blockIdx.z of all (sequence, kv head).
template <int kHeadDim>
inline constexpr int kWarpParts = kWarp / kRowLanes<kHeadDim>;

template <int kHeadDim, typename Part>
__global__ void __launch_bounds__(kThreads, 4)
    AppendDecodeKernel(const BatchView batch, const AppendParams params, const PagedKv kv,
                       int group, const AppendOverlap overlap, bool rehearses) {
  static_assert(kWarpParts<kHeadDim> >= 2);
  constexpr int kLanes = kRowLanes<kHeadDim>;
  if (overlap.triggers_early) TriggerDependents();
  const int warp = Warp();
  const int lane = Lane();
  const int seq = static_cast<int>(blockIdx.y);
  const bool first = blockIdx.z == 0;  // has the key, the value and the gates
  const int part = static_cast<int>(blockIdx.z) * kWarpParts<kHeadDim> + lane / kLanes;
  Token token;
  token.kv_head = static_cast<int>(blockIdx.x) * kWarps + warp;
  token.group = group;
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
  State state{};
  RowPlace place{};
  Outputs to{};
  float gate_bias = 0;
  // Everything that does not depend on the projection; after the wait a row is one load away. First
  // the loads: the state's are two, one after the other.
  if (there) {
    weights = LoadWeights<kHeadDim>(params, token, part);
    if (first && overlap.reads_early) {
      state = LoadState<kHeadDim>(params, kv, token, part);
    } else if (first) {
      PrefetchState<kHeadDim>(params, kv, token);
    }
    gate_bias = GateBias(params, LaneHead(token));
    place = PlaceOf<kHeadDim>(params, token, part);
    if (params.rope_frequency != nullptr) {
      rotation = RotationOfWarp<kHeadDim>(params, token.position, lane % kLanes);
    }
    to = OutputsOf<kHeadDim, Part>(params, kv, token, place, part, first);
    if (first && !overlap.reads_early) {
      WaitOnDependencies();
      state = LoadState<kHeadDim>(params, kv, token, part);
    }
    if (first) LoadBase(kv, token, state);
  }
  // A rehearsal runs the code behind the wait on whatever is there, without its stores: so the
  // instructions, fetched from afar, are near when the projection has ended.
  token.page = state.page;
  HeadGate gate;
#pragma unroll 1
  for (int run = rehearses && there ? 0 : 1; run < 2; ++run) {
    const bool stores = run == 1;
    if (stores) {
      WaitOnDependencies();
      if (!overlap.triggers_early) TriggerDependents();
      if (!there) return;
    }
    const RowInput input = LoadInput(place);
    if (stores && first && token.drafts > 0) {
      AddRowsBefore(params, token, place, gate_bias, to.last != nullptr, state);
    }
    AppendRow<kHeadDim, Part>(params, part, input, state, weights, rotation, to, stores);
    if (!first) continue;
    gate = {LogGate(params, GateLogit(params, input.gate) + gate_bias), state.c, state.base};
    StoreGate(token, to, gate, stores);
  }
}

// Shared memory that a block asks for and does not use. With 3 to 5 KiB a step of 32 rows and pages
// of 8 bits takes 2% less than with none or with more (760M; bf16 loses 1%;
// kernels/docs/append.md).
template <typename Part>
constexpr size_t kSpareBytes = kHasExponents<Part> ? 4096 : 0;

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const AppendOverlap& overlap, cudaStream_t stream) {
  constexpr int kParts = kWarpParts<kHeadDim>;
  const int group = kv.shape.group();
  const dim3 grid(static_cast<unsigned>((kv.shape.kv_heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(batch.num_seqs),
                  static_cast<unsigned>((2 + group + kParts - 1) / kParts));
  return DispatchPart(kv.shape.dtype, [&]<typename Part>() {
    const auto kernel = AppendDecodeKernel<kHeadDim, Part>;
    // Where the kernel would otherwise only wait.
    const bool rehearses =
        overlap.reads_early && !overlap.triggers_early && Overlaps(KernelAddress(kernel), stream);
    const SmemConfig smem(batch.num_rows > kFewRows ? kSpareBytes<Part> : 0, overlap.carveout);
    return Launch(kernel, grid, kThreads, smem, stream, batch, params, kv, group, overlap,
                  rehearses);
  });
}

}  // namespace

cudaError_t AppendDecode(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                         const AppendOverlap& overlap, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, overlap, stream);
  });
}

}  // namespace fox::cuda
