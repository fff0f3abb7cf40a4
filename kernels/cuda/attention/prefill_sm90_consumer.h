// A consumer warpgroup of PrefillSm90: 64 rows of an item walk its key/value tiles from the
// diagonal to the left with an online softmax. Scores, scaled to log2 units, get their keys'
// biases; weights go from registers straight into the product with the values. (Products that start
// from the bias would save an addition, but ptxas starts none of those while others run.)
//
// Order of the products (FlashAttention-3's overlap of softmax and products, one step further for
// narrow heads): see WalkAhead and WalkInTurn. Wgmma groups finish in the order they were closed.
// The pivot is raised only when a score exceeds it by 2^kLazyLog2 (FlashAttention-4).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/prefill_sm90_plan.h"
#include "kernels/cuda/device/fast_math.h"
#include "kernels/cuda/device/named_barrier.h"
#include "kernels/cuda/device/shared_memory.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/kv_index.cuh"

namespace fox::cuda {

inline constexpr float kLazyLog2 = 8.0f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Word b of lane q of a quad becomes word q of lane b.
__device__ __forceinline__ uint4 QuadTranspose(const uint32_t (&w)[4], int quad_lane) {
  const bool odd = quad_lane % 2 != 0, upper = quad_lane / 2 != 0;
  const uint32_t from0 = __shfl_xor_sync(kAllLanes, odd ? w[0] : w[1], 1);
  const uint32_t from1 = __shfl_xor_sync(kAllLanes, odd ? w[2] : w[3], 1);
  // Words of an even lane and its neighbour, in blocks odd and 2 + odd.
  const uint2 low{odd ? from0 : w[0], odd ? w[1] : from0};
  const uint2 high{odd ? from1 : w[2], odd ? w[3] : from1};
  const uint2 kept = upper ? high : low, sent = upper ? low : high;
  const uint2 got{__shfl_xor_sync(kAllLanes, sent.x, 2), __shfl_xor_sync(kAllLanes, sent.y, 2)};
  return upper ? uint4{got.x, got.y, kept.x, kept.y} : uint4{kept.x, kept.y, got.x, got.y};
}

// Named barriers; 0 is __syncthreads.
inline constexpr int kTurnBarrier = 1;            // + half: this half may issue products
inline constexpr int kVoteBarrier = 1 + kHalves;  // + half
inline constexpr int kTurnThreads = 128 * kHalves;

// Whether `vote` holds in any thread of the warpgroup.
__device__ __forceinline__ bool WarpgroupAny(bool vote, int half) {
  const bool any = AnyOfThreads<128>(kVoteBarrier + half, vote);
  return __any_sync(kAllLanes, any) != 0;  // the same, but the compiler sees that it is
}

template <int kHeadDim, bool kCertified>
class PrefillConsumer {
 public:
  __device__ PrefillConsumer(PrefillShared<kHeadDim>& shared, const PrefillArguments& arguments,
                             int half)
      : shared_(shared),
        arguments_(arguments),
        half_(half),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        row_(half * kHalfRows + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane_ / 4) {}

  __device__ __forceinline__ void Run() {
    if (!Plan::kTwoScores && half_ == 1) PassTurn();  // the first half begins
    int slot = 0;
    uint32_t phase = 0;
    for (uint32_t count = 0;; ++count) {
      shared_.item_full[slot].Wait(phase);
      PrefillItem& item = shared_.items[slot];
      if (item.count == 0) break;
      const uint32_t q_slot = count % kQuerySlots;
      shared_.q_full[q_slot].Wait(count / kQuerySlots % 2);
      int visited = 0;
      if (item.count > half_ * kHalfRows) {
        const uint32_t begin = counter_;
        q_ = KeyMajor(shared_.q[q_slot] + half_ * kHalfRows * Plan::kLineBytes);
        track_max_ = item.track_max != 0;
        if constexpr (Plan::kTwoScores) {
          WalkAhead(item);
        } else {
          WalkInTurn(item);
        }
        visited = static_cast<int>(counter_ - begin);
      }
      Release(shared_.q_empty[q_slot]);
      if (visited > 0) Store(item);
      CountBlocks(item, visited);
      Drain(item, visited);
      Release(shared_.item_empty[slot]);
      if (++slot == kItemSlots) {
        slot = 0;
        phase ^= 1;
      }
    }
  }

 private:
  using Plan = PrefillPlan<kHeadDim>;
  static constexpr uint32_t kStages = Plan::kStages;

  __device__ __forceinline__ void Release(Mbarrier& empty) {
    __syncwarp();
    if (lane_ == 0) empty.Arrive();
  }
  __device__ __forceinline__ void WaitForKeys(uint32_t n) {
    shared_.k_full[n % kStages].Wait(n / kStages % 2);
  }
  __device__ __forceinline__ void WaitForValues(uint32_t n) {
    shared_.v_full[n % kStages].Wait(n / kStages % 2);
  }
  __device__ __forceinline__ void ReleaseValues(uint32_t n) {
    Release(shared_.v_empty[n % kStages]);
  }
  // `needless`: what the loader learns about the tile that was here.
  __device__ __forceinline__ void ReleaseKeys(uint32_t n, bool needless) {
    if constexpr (kCertified) {
      if (threadIdx.x % 128 == 0) shared_.done[n % kStages][half_] = needless ? 1 : 0;
    }
    Release(shared_.k_empty[n % kStages]);
  }

  // The halves issue their products by turns, one turn for each tile of an item but the first, so
  // that one's softmax runs beside the other's products.
  __device__ __forceinline__ void AwaitTurn() { SyncThreads<kTurnThreads>(kTurnBarrier + half_); }
  __device__ __forceinline__ void PassTurn() {
    ArriveAtBarrier<kTurnThreads>(kTurnBarrier + (half_ ^ 1));
  }

  // --- products

  // 8 rows of queries or keys follow each other, head dim contiguous.
  __device__ __forceinline__ uint64_t KeyMajor(const uint8_t* tile) {
    return MatrixDescriptor(SharedAddress(tile), 16, 8 * Plan::kLineBytes, Plan::kSwizzle);
  }

  __device__ __forceinline__ void IssueScores(float (&s)[64], uint32_t n) {
    const uint64_t k = KeyMajor(shared_.k[n % kStages]);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t at =
          step * 32 / Plan::kLineBytes * Plan::kBlockBytes + step * 32 % Plan::kLineBytes;
      if (step == 0) {
        WgmmaScores<true>(s, q_, k);
      } else {
        WgmmaScores<false>(s, q_ + at / 16, k + at / 16);
      }
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ void IssueValues(uint32_t n) {
    const uint64_t v = MatrixDescriptor(SharedAddress(shared_.v[n % kStages]), Plan::kBlockBytes,
                                        8 * Plan::kLineBytes, Plan::kSwizzle);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      WgmmaValues(out_, weights_, step, v + step * (16 * Plan::kLineBytes / 16));
    }
    WgmmaCommit();
  }

  // --- softmax

  // x: the scores of tile n in log2 units, relative to c_ref.
  __device__ __forceinline__ void AddBias(const float (&s)[64], uint32_t n, float (&x)[64]) {
    const float* bias = shared_.bias[n % kStages] + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(bias + 2 * i);
      x[i] = fmaf(s[i], Plan::kScale, pair.x);
      x[i + 1] = fmaf(s[i + 1], Plan::kScale, pair.y);
      x[i + 2] = fmaf(s[i + 2], Plan::kScale, pair.x);
      x[i + 3] = fmaf(s[i + 3], Plan::kScale, pair.y);
    }
  }

  // Keys after the row's own, and what is not seen before first_key.
  __device__ __forceinline__ void Mask(float (&s)[64], const PrefillItem& item) {
    const int first = item.first_key(), column = 2 * (lane_ % 4) - first;
    const int own = item.position % kTileKeys + row_ - first;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const auto at = static_cast<uint32_t>(column + i / 4 * 8 + i % 2);
      if (at > static_cast<uint32_t>(own + i / 2 % 2 * 8)) s[i] = -INFINITY;
    }
  }

  // Largest scores of the thread's keys in its two rows.
  __device__ __forceinline__ void MaxScores(const float (&s)[64], float (&top)[2]) {
    float a[4] = {s[0], s[2], s[1], s[3]};
#pragma unroll
    for (int i = 4; i < 64; i += 4) {
      a[0] = fmaxf(a[0], s[i]);
      a[1] = fmaxf(a[1], s[i + 2]);
      a[2] = fmaxf(a[2], s[i + 1]);
      a[3] = fmaxf(a[3], s[i + 3]);
    }
    top[0] = fmaxf(a[0], a[2]);
    top[1] = fmaxf(a[1], a[3]);
  }

  // The first tile sets the pivots; later ones raise them where they must. No products with values
  // but those of tiles before may be in flight.
  template <bool kFirst>
  __device__ __forceinline__ void SetPivots(float (&s)[64], const PrefillItem& item) {
    float top[2];
    if constexpr (kFirst) {
      Mask(s, item);
      MaxScores(s, top);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        pivot_[r] = QuadMax(top[r]);
        sum_[r] = 0;
      }
    } else if (track_max_) {
      MaxScores(s, top);
      const bool high = top[0] > pivot_[0] + kLazyLog2 || top[1] > pivot_[1] + kLazyLog2;
      // The warpgroup's decision, for it may wait for products only as a whole.
      if (WarpgroupAny(high, half_)) RaisePivots(top);
    }
  }

  __device__ __forceinline__ void RaisePivots(const float (&top)[2]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float high = QuadMax(top[r]);
      // A row's own affair, whoever asked: other sequences must not change its bits.
      const float pivot = high > pivot_[r] + kLazyLog2 ? high : pivot_[r];
      shrink[r] = Exp2(pivot_[r] - pivot);
      sum_[r] *= shrink[r];
      pivot_[r] = pivot;
    }
    WgmmaWait<0>();
    PinSums(out_);
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out_[i] *= shrink[i / 2 % 2];
  }

  // Scores become weights 2^(s - pivot), added up in sum_.
  __device__ __forceinline__ void Exponentiate(float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int r = i / 2 % 2;
      s[i] = Exp2(s[i] - pivot_[r]);
      sum_[r] += s[i];
    }
  }

  // Not while products that read weights_ are in flight.
  __device__ __forceinline__ void TakeWeights(const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) weights_[i] = PackBf16(s[2 * i], s[2 * i + 1]);
  }

  // Whether all rows of this half can do without the tile that carries `stop_at` and all left of
  // it (acp.md 2d). The sums are of the keys visited so far, which suffices.
  __device__ __forceinline__ bool MayStop(const PrefillItem& item, float stop_at) {
    bool proven = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = row_ + 8 * r < item.count;
      const float mass = QuadSum(sum_[r]) * Exp2(pivot_[r] - stop_at);
      proven = proven && (!real || mass >= 1.0f);
    }
    return !WarpgroupAny(!proven, half_);
  }

  // Asking costs a few percent of a tile's walk: most local heads see two tiles and never ask, and
  // long walks ask seldom.
  __device__ __forceinline__ static bool IsTimeToAsk(int visited) {
    return visited % (visited < 8 ? 2 : 8) == 0;
  }

  // --- walks: over tiles counter_, counter_ + 1, ...; afterwards counter_ is behind the last one
  // visited and all products are done.

  // With registers for the scores of two tiles those of the next are computed during the softmax of
  // this one, so a warpgroup waits neither for scores nor for values. Shaped for ptxas, which makes
  // products wait for each other when it cannot follow them: no product under a condition (behind
  // the last tile the scores of whatever lies in the next slot are computed and forgotten), and
  // outputs touched only where nothing else is in flight.
  __device__ __forceinline__ void WalkAhead(const PrefillItem& item) {
    float s[64];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out_[i] = 0;
    int more = __shfl_sync(kAllLanes, item.slots - 1, 0);  // tiles after counter_
    WaitForKeys(counter_);
    IssueScores(s, counter_);
    WgmmaWait<0>();
    PinSums(s);
    bool stop = StepAhead<true>(s, item, more);
    for (; more > 0 && !stop; --more) stop = StepAhead<false>(s, item, more - 1);
    WgmmaWait<0>();
    PinSums(out_);
    ReleaseValues(counter_ - 1);
  }

  // From the scores of counter_ to those of the next tile; in flight are (but at first) the
  // products with the values before. Returns whether the `more` tiles after it are not needed.
  template <bool kFirst>
  __device__ __forceinline__ bool StepAhead(float (&s)[64], const PrefillItem& item, int more) {
    float x[64];
    AddBias(s, counter_, x);
    ReleaseKeys(counter_, false);
    SetPivots<kFirst>(x, item);
    float stop_at = 0;
    if (more > 0) {
      WaitForKeys(counter_ + 1);
      if constexpr (kCertified) stop_at = shared_.stop_at[(counter_ + 1) % kStages];
    }
    IssueScores(s, counter_ + 1);
    Exponentiate(x);
    if constexpr (!kFirst) {
      WgmmaWait<1>();
      PinSums(out_);
      ReleaseValues(counter_ - 1);
    }
    TakeWeights(x);
    WaitForValues(counter_);
    IssueValues(counter_);
    ++counter_;
    WgmmaWait<1>();
    PinSums(s);
    if constexpr (kCertified) {
      return more > 0 && IsTimeToAsk(item.slots - more) && MayStop(item, stop_at);
    }
    return false;
  }

  // One score buffer: a turn issues the scores of this tile and the values of the one before; the
  // softmax of this tile runs beside the latter and beside the other half's turn.
  __device__ __forceinline__ void WalkInTurn(const PrefillItem& item) {
    float s[64];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out_[i] = 0;
    const uint32_t end = counter_ + static_cast<uint32_t>(item.slots);
    WaitForKeys(counter_);
    IssueScores(s, counter_);
    WgmmaWait<0>();
    PinSums(s);
    AddBias(s, counter_, s);
    ReleaseKeys(counter_, false);
    SetPivots<true>(s, item);
    Exponentiate(s);
    TakeWeights(s);
    for (++counter_; counter_ != end; ++counter_) {
      WaitForKeys(counter_);
      if constexpr (kCertified) {
        const int visited = item.slots - static_cast<int>(end - counter_);
        if (IsTimeToAsk(visited) && MayStop(item, shared_.stop_at[counter_ % kStages])) break;
      }
      AwaitTurn();
      IssueScores(s, counter_);
      WaitForValues(counter_ - 1);
      IssueValues(counter_ - 1);
      PassTurn();
      WgmmaWait<1>();
      PinSums(s);
      AddBias(s, counter_, s);
      ReleaseKeys(counter_, false);
      SetPivots<false>(s, item);
      Exponentiate(s);
      WgmmaWait<0>();
      PinSums(out_);
      ReleaseValues(counter_ - 1);
      TakeWeights(s);
    }
    WaitForValues(counter_ - 1);
    IssueValues(counter_ - 1);
    WgmmaWait<0>();
    PinSums(out_);
    ReleaseValues(counter_ - 1);
  }

  // Lets the item's other tiles pass by: the other half may need them.
  __device__ __forceinline__ void Drain(const PrefillItem& item, int visited) {
    for (int i = visited; i < item.slots; ++i) {
      if (!Plan::kTwoScores && i > 0) {
        AwaitTurn();
        PassTurn();
      }
      const uint32_t n = counter_++;
      WaitForKeys(n);
      bool over = false;
      if constexpr (kCertified) over = shared_.end[n % kStages] != 0;
      ReleaseKeys(n, true);
      WaitForValues(n);
      ReleaseValues(n);
      if (over) break;
    }
  }

  __device__ __forceinline__ void Store(const PrefillItem& item) {
    const int quad_lane = lane_ % 4;
    auto* out = static_cast<__nv_bfloat16*>(arguments_.out);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      const bool real = row < item.count;
      const float sum = QuadSum(sum_[r]);
      const float scale = sum > 0 ? 1 / sum : 0;
      __nv_bfloat16* to = out +
                          (static_cast<int64_t>(item.first_row) + row) * arguments_.out_stride +
                          item.head * kHeadDim + 8 * quad_lane;
#pragma unroll
      for (int b = 0; b < kHeadDim / 8; b += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = 4 * (b + j) + 2 * r;
          words[j] = PackBf16(out_[i] * scale, out_[i + 1] * scale);
        }
        const uint4 vector = QuadTranspose(words, quad_lane);
        if (real) *reinterpret_cast<uint4*>(to + 8 * b) = vector;
      }
      if (arguments_.log_sum != nullptr && real && quad_lane == 0) {
        StoreLogSum(item, row, pivot_[r], sum);
      }
    }
  }

  // Scores are relative to c_ref: s + c_ref - c_j; the row's logits are s + c_i - c_j.
  __device__ __forceinline__ void StoreLogSum(const PrefillItem& item, int row, float pivot,
                                              float sum) {
    const PagedKv& kv = arguments_.kv;
    const int group = GroupOf(kv), position = item.position + row;
    const int32_t page = kv.page_table[item.table + position / kPageTokens];
    const int64_t own = static_cast<int64_t>(page) * group + item.head % group;
    const float local =
        static_cast<const float*>(kv.local_gate)[own * kPageTokens + position % kPageTokens];
    const double decay = kv.c_base[own] + static_cast<double>(local) - item.reference;
    const double log_sum = static_cast<double>(kLn2) * (static_cast<double>(pivot) + log2f(sum));
    arguments_.log_sum[(static_cast<int64_t>(item.first_row) + row) * arguments_.log_sum_stride +
                       item.head] = sum > 0 ? static_cast<float>(log_sum + decay) : 0.0f;
  }

  // The half that is done last adds what the tile's rows saw of the causal range, and what not.
  __device__ __forceinline__ void CountBlocks(PrefillItem& item, int visited) {
    if (threadIdx.x % 128 != 0) return;
    atomicMax_block(&item.visited, visited);
    __threadfence_block();
    if (atomicAdd_block(&item.halves_done, 1) != kHalves - 1) return;
    __threadfence_block();
    visited = atomicMax_block(&item.visited, 0);
    const int page = item.position / kPageTokens;
    const int here = min(item.count, (page + 1) * kPageTokens - item.position);
    const int64_t total = static_cast<int64_t>(here) * (page + 1) +
                          static_cast<int64_t>(item.count - here) * (page + 2);
    const int left = max(item.first_page, 2 * (item.diagonal() - visited + 1));
    Add(arguments_.blocks_total, item.seq, total);
    Add(arguments_.blocks_skipped, item.seq, static_cast<int64_t>(item.count) * left);
  }
  __device__ __forceinline__ void Add(int64_t* counts, int seq, int64_t amount) {
    if (counts == nullptr) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(counts) + seq,
              static_cast<unsigned long long>(amount));
  }

  PrefillShared<kHeadDim>& shared_;
  const PrefillArguments& arguments_;
  const int half_, lane_, row_;  // row_ and row_ + 8 of the tile are this thread's
  uint32_t counter_ = 0;         // of key/value tiles
  uint64_t q_ = 0;
  bool track_max_ = true;
  float out_[kHeadDim / 2];
  uint32_t weights_[32];
  float pivot_[2], sum_[2];
};

}  // namespace fox::cuda
