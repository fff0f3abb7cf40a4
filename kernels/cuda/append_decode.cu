// Append where every sequence has one row: one kernel, a warp for each (sequence, kv head). The
// warp's lanes take the key, the value and the queries of the group side by side. Where the row
// ends a page, the same warp folds it, as kernels/cpu/append.cc does.
#include "kernels/acp.h"
#include "kernels/core/check.h"
#include "kernels/cuda/append_fold.cuh"
#include "kernels/cuda/append_kernels.h"
#include "kernels/cuda/launch.h"

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
  int place;     // in its page
  int32_t page;  // id
};

// The gate of one query head of the group, in the lane of the head's place in the group.
struct HeadGate {
  float log_gate = 0;
  double c = 0;     // before, then with this token
  double base = 0;  // of the page
};

__device__ __forceinline__ HeadGate LoadGate(const AppendParams& params, const PagedKv& kv,
                                             const Token& token) {
  const int g = static_cast<int>(threadIdx.x) % kWarp, group = GroupOf(kv);
  HeadGate gate;
  if (g >= group) return gate;
  const int head = token.kv_head * group + g;
  gate.c = kv.c[HeadIndex(kv, token.slot, params.layer, head)];
  gate.base = gate.c;
  if (token.place > 0) gate.base = kv.c_base[static_cast<int64_t>(token.page) * group + g];
  gate.log_gate = LogGate(params, ProjectionRow(params, token.row), head);
  return gate;
}

__device__ __forceinline__ void StoreGate(const AppendParams& params, const PagedKv& kv,
                                          const Token& token, HeadGate& gate) {
  const int g = static_cast<int>(threadIdx.x) % kWarp, group = GroupOf(kv);
  gate.c += static_cast<double>(gate.log_gate);
  if (g >= group) return;
  const int64_t summary = static_cast<int64_t>(token.page) * group + g;
  if (token.place == 0) kv.c_base[summary] = gate.base;
  static_cast<float*>(kv.local_gate)[summary * kPageTokens + token.place] =
      static_cast<float>(gate.c - gate.base);
  kv.c[HeadIndex(kv, token.slot, params.layer, token.kv_head * group + g)] = gate.c;
}

// A row of the token: job 0 is the key, 1 the value, 2 + g query g of the group.
template <int kHeadDim>
__device__ __forceinline__ void AppendRow(const AppendParams& params, const PagedKv& kv,
                                          const Token& token, int job, bool rotates,
                                          const Rotation& rotation) {
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>, group = GroupOf(kv);
  const bool there = job < 2 + group, is_query = job >= 2;
  const int head = is_query ? token.kv_head * group + job - 2 : token.kv_head;
  const int64_t column = is_query ? params.q_column : job == 0 ? params.k_column : params.v_column;
  const int64_t shift_column = is_query   ? -1
                               : job == 0 ? params.k_shift_column
                                          : params.v_shift_column;
  const int64_t in_head = sub * kOctet, of_head = static_cast<int64_t>(head) * kHeadDim + in_head;
  __nv_bfloat16* row = ProjectionRow(params, token.row);
  const float* weight = nullptr;
  if (there && job != 1) {
    weight = static_cast<const float*>(is_query ? params.q_norm : params.k_norm);
    if (weight != nullptr) weight += of_head;
  }
  Octet o{};
  if (there) o = LoadOctet(row + column + of_head);
  if (there && shift_column >= 0) {
    float* last =
        LastRow(kv, job == 0 ? kv.last_k : kv.last_v, token.slot, params.layer, token.kv_head) +
        in_head;
    Octet before{};
    if (token.position > 0) before = LoadOctet(last);
    StoreOctet(o, last);
    Shift(o, before, Sigmoid(__bfloat162float(row[shift_column + token.kv_head])));
  }
  Normalize<kHeadDim>(o, weight, static_cast<float>(params.qk_norm_eps));
  if (rotates) {
    Octet rotated = o;
    Rotate<kHeadDim>(rotated, rotation);
    if (job != 1) o = rotated;
  }
  const int64_t in_page =
      (static_cast<int64_t>(token.page) * kPageTokens + token.place) * kHeadDim + in_head;
  __nv_bfloat16* to = is_query
                          ? row + column + of_head
                          : static_cast<__nv_bfloat16*>(job == 0 ? kv.keys : kv.values) + in_page;
  if (there) *reinterpret_cast<uint4*>(to) = RoundOctet(o);
}

// What a warp needs beside registers to fold a page.
template <int kHeadDim>
struct FoldSpace {
  float decay[kPageTokens], term[kPageTokens];
  alignas(16) float keys[kHeadDim];  // the page's decayed sum, then the mean of all
};

// log M, score and horizon of the page, by one lane; `page_mass` is the page's own log M.
__device__ __forceinline__ void StoreSummaries(const AppendParams& params, const PagedKv& kv,
                                               const Token& token, int g, double c_end,
                                               double page_decay, double page_mass,
                                               double max_square, double beta) {
  const int group = GroupOf(kv);
  const int64_t state = HeadIndex(kv, token.slot, params.layer, token.kv_head * group + g);
  const int64_t summary = static_cast<int64_t>(token.page) * group + g;
  const double earlier = kv.log_mass[state] + page_decay;
  const double high = earlier > page_mass ? earlier : page_mass;
  const double low = earlier > page_mass ? page_mass : earlier;
  const double log_mass = high + log1p(exp(low - high));  // page_mass is finite
  kv.log_mass[state] = log_mass;
  double key_norm = sqrt(max_square), horizon = CUDART_INF;
  if (token.position >= kPageTokens) {
    const int32_t* table = Table(kv, ListIndex(kv, token.slot, params.layer, token.kv_head));
    const int64_t before =
        static_cast<int64_t>(table[token.position / kPageTokens - 1]) * group + g;
    key_norm = fmax(key_norm, kv.key_norm[before]);
    if (params.acp == AcpMode::kCertified) horizon = kv.horizon[before];
  }
  kv.key_norm[summary] = key_norm;
  if (params.acp == AcpMode::kPaper) {
    kv.score[summary] = log(static_cast<double>(token.position + 1)) - c_end;
    return;
  }
  kv.score[summary] = log_mass - c_end;
  const double here = c_end + beta;
  kv.horizon[summary] = here < horizon ? here : horizon;
}

// Folds the page that the token completed into the state of query head g of the group. The warp
// calls together.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ void FoldPage(const AppendParams& params, const PagedKv& kv,
                                         const Token& token, int g, double c_end, double base,
                                         FoldSpace<kHeadDim>& space) {
  constexpr int kLanes = kRowLanes<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, sub = lane % kLanes;
  const int group = GroupOf(kv), head = token.kv_head * group + g;
  const float* local = static_cast<const float*>(kv.local_gate) +
                       (static_cast<int64_t>(token.page) * group + g) * kPageTokens;
  const double page_decay = c_end - base;
  __syncwarp();  // the token's rows and gates are in the page, the space is no longer read
  for (int j = lane; j < kPageTokens; j += kWarp) {
    space.decay[j] = static_cast<float>(page_decay - static_cast<double>(local[j]));
  }
  __syncwarp();
  const HeadBound<kHeadDim, kGeneral> bound(params.bound, head, sub);
  const __nv_bfloat16* keys = static_cast<const __nv_bfloat16*>(kv.keys) +
                              static_cast<int64_t>(token.page) * kPageTokens * kHeadDim;
  const KeySums sums = SumKeys(bound, keys, space.decay, 0, kPageTokens, space.term);
  if (lane < kLanes) StoreOctet(sums.keys, space.keys + lane * kOctet);

  const int64_t state = HeadIndex(kv, token.slot, params.layer, head);
  const double keep = exp(page_decay);
  const double decay_sum = kv.decay_sum[state] * keep + static_cast<double>(sums.count);
  double* key_sum = kv.key_sum + state * kHeadDim;
  __syncwarp();
  for (int m = lane; m < kHeadDim; m += kWarp) {
    const double sum = key_sum[m] * keep + static_cast<double>(space.keys[m]);
    key_sum[m] = sum;
    space.keys[m] = static_cast<float>(sum / decay_sum);
  }
  __syncwarp();
  const float mean_bound = bound(LoadOctet(space.keys + sub * kOctet), -1.0f);
  const double page_mass = LogSumExpOfPage(space.term);
  if (lane != 0) return;
  kv.decay_sum[state] = decay_sum;
  StoreSummaries(params, kv, token, g, c_end, page_decay, page_mass,
                 static_cast<double>(sums.max_square),
                 static_cast<double>(mean_bound) - log(decay_sum));
}

template <int kHeadDim, bool kGeneral>
__global__ void __launch_bounds__(kThreads, kGeneral ? 4 : 7)
    AppendDecodeKernel(const BatchView batch, const AppendParams params, const PagedKv kv) {
  __shared__ FoldSpace<kHeadDim> space[kWarps];
  LetNextStart();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int seq = static_cast<int>(blockIdx.y), group = GroupOf(kv);
  Token token;
  token.kv_head = static_cast<int>(blockIdx.x) * kWarps + warp;
  WaitForPrevious();
  if (token.kv_head >= kv.shape.kv_heads) return;
  token.slot = batch.slot[seq];
  if (token.slot < 0) return;
  token.row = batch.row_begin[seq];
  token.position = batch.position[seq];
  token.place = static_cast<int>(token.position % kPageTokens);
  token.page = Table(
      kv, ListIndex(kv, token.slot, params.layer, token.kv_head))[token.position / kPageTokens];

  HeadGate gate = LoadGate(params, kv, token);
  constexpr int kLanes = kRowLanes<kHeadDim>, kRows = kWarp / kLanes;
  Rotation rotation;
  const bool rotates = params.rope_frequency != nullptr;
  if (rotates) {
    rotation = RotationAt<kHeadDim>(params.rope_frequency, token.position, lane % kLanes);
  }
  for (int job = 0; job < 2 + group; job += kRows) {
    AppendRow<kHeadDim>(params, kv, token, job + lane / kLanes, rotates, rotation);
  }
  StoreGate(params, kv, token, gate);

  if (token.place != kPageTokens - 1 || params.acp == AcpMode::kOff) return;
  for (int g = 0; g < group; ++g) {
    const double c_end = __shfl_sync(kAllLanes, gate.c, g);
    const double base = __shfl_sync(kAllLanes, gate.base, g);
    FoldPage<kHeadDim, kGeneral>(params, kv, token, g, c_end, base, space[warp]);
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((kv.shape.kv_heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(batch.num_seqs));
  return IsDiagonal(params.bound) || params.acp == AcpMode::kOff
             ? Launch(AppendDecodeKernel<kHeadDim, false>, grid, kThreads, 0, stream, batch, params,
                      kv)
             : Launch(AppendDecodeKernel<kHeadDim, true>, grid, kThreads, 0, stream, batch, params,
                      kv);
}

}  // namespace

cudaError_t AppendDecode(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                         cudaStream_t stream) {
  switch (kv.shape.head_dim) {
    case 16:
      return LaunchFor<16>(batch, params, kv, stream);
    case 32:
      return LaunchFor<32>(batch, params, kv, stream);
    case 64:
      return LaunchFor<64>(batch, params, kv, stream);
    case 128:
      return LaunchFor<128>(batch, params, kv, stream);
    default:
      FOX_CHECK(false);
      return cudaErrorInvalidValue;
  }
}

}  // namespace fox::cuda
