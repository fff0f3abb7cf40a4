// A consumer warpgroup of PrefillSm90: the KV loop of 64 rows of a work tile, over its key/value
// tiles from the diagonal to the left, with an online softmax. Scores, scaled to log2 units, get
// their keys' biases; weights go from registers straight into the product with the values.
// (Products that start from the bias would save an addition, but ptxas starts none of those while
// others run.)
//
// Order of the products (FlashAttention-3's overlap of softmax and products, one step further for
// narrow heads): see IntraWarpgroupPipelined and PingPong. The reference maximum is raised only
// when a score exceeds it by 2^kLazyLog2 (FlashAttention-4).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/prefill/sm90/plan.cuh"
#include "kernels/cuda/attention/prefill/sm90/products.cuh"
#include "kernels/cuda/attention/prefill/sm90/results.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda {

inline constexpr float kLazyLog2 = 8.0f;
// If a row's log2 of l 2^m is below stop_at by more than this, its half tests the certificate again
// only after stop_at has fallen by as much.
inline constexpr int kFarLog2 = 4;

// Named barriers; 0 is __syncthreads.
inline constexpr int kTurnBarrier = 1;            // + half: it is this half's turn
inline constexpr int kVoteBarrier = 1 + kHalves;  // + half
inline constexpr int kTurnThreads = 128 * kHalves;

// True if `vote` holds in any thread of the warpgroup.
__device__ __forceinline__ bool WarpgroupAny(bool vote, int half) {
  const bool any = NamedBarrierAny<128>(kVoteBarrier + half, vote);
  return __any_sync(kAllLanes, any) != 0;  // the same, but the compiler sees that it is
}

template <typename Source, int kHeadDim, bool kCertified>
class PrefillConsumer {
 public:
  __device__ PrefillConsumer(PrefillShared<Source, kHeadDim>& shared, const Source& source,
                             int half)
      : shared_(shared),
        source_(source),
        half_(half),
        lane_(Lane()),
        row_(half * kHalfRows + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane_ / 4),
        products_(shared) {}

  __device__ __forceinline__ void Run() {
    if (half_ == 1) SignalPeer();  // the first half begins
    for (;; ++count_) {
      Work& work_tile = WaitForWork();
      if (work_tile.count == 0) break;
      int visited = 0;
      if (HasRows(work_tile) && !IsNeedless(work_tile)) {
        begin_ = counter_;
        WaitForQueries();
        track_max_ = source_.TracksMax(work_tile);
        if constexpr (Plan::kDoubleBufferedScores) {
          IntraWarpgroupPipelined(work_tile);
        } else {
          PingPong(work_tile);
        }
        if constexpr (Source::kTransforms) transform_.Load(source_.transform, work_tile, row_);
        products_.WaitForAll();
        ReleaseValues(counter_ - 1);
        visited = static_cast<int>(counter_ - begin_);
      } else {
        WaitForQueries();
      }
      Release(shared_.q_empty[count_ % kQueryStages]);
      if (visited > 0) {
        Store(work_tile);
      } else if constexpr (Source::kPadsLogSums) {
        PadLogSums(work_tile);
      }
      if (threadIdx.x % 128 == 0) source_.CountBlocks(work_tile, visited);
      Drain(work_tile, visited);
      Release(shared_.work_empty[count_ % kWorkStages]);
    }
  }

 private:
  using Plan = PrefillPlan<kHeadDim>;
  using Work = typename Source::Work;
  static constexpr uint32_t kStages = Plan::kStages;

  __device__ __forceinline__ void Release(Mbarrier& empty) {
    __syncwarp();
    if (lane_ == 0) empty.Arrive();
  }
  __device__ __forceinline__ Work& WaitForWork() {
    const uint32_t slot = count_ % kWorkStages;
    shared_.work_full[slot].Wait(count_ / kWorkStages % 2);
    return shared_.work_tiles[slot];
  }
  __device__ __forceinline__ bool HasRows(const Work& work_tile) const {
    return work_tile.count > half_ * kHalfRows;
  }
  // True if this half can skip a serial split. A vote shows the compiler that all lanes agree;
  // without it counter_, and with it every address of a product, would be computed per lane.
  __device__ __forceinline__ bool IsNeedless(const Work& work_tile) const {
    if constexpr (kCertified && Source::kSplitsKeys) {
      const bool needless = !work_tile.on_diagonal() && ended_serial_ == work_tile.serial;
      return __any_sync(kAllLanes, needless) != 0;
    }
    return false;
  }
  __device__ __forceinline__ void WaitForQueries() {
    const uint32_t slot = count_ % kQueryStages;
    shared_.q_full[slot].Wait(count_ / kQueryStages % 2);
    products_.SetQueries(shared_.q[slot] + half_ * kHalfRows * Plan::kLineBytes);
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
  __device__ __forceinline__ void ReleaseKeys(uint32_t n) { Release(shared_.k_empty[n % kStages]); }

  // The halves take turns, one for each tile of a work tile (with one score buffer not for the
  // first), so that one's softmax runs beside the other's products.
  __device__ __forceinline__ void WaitForTurn() { SyncThreads<kTurnThreads>(kTurnBarrier + half_); }
  __device__ __forceinline__ void SignalPeer() {
    ArriveAtBarrier<kTurnThreads>(kTurnBarrier + (half_ ^ 1));
  }

  // --- softmax

  // x: the scores of tile n in log2 units, relative to c_ref.
  __device__ __forceinline__ void AddBias(const float (&s)[64], uint32_t n, float (&x)[64]) {
    const float scale = source_.template Scale<kHeadDim>();
    const float* key_decay_bias = shared_.key_decay_bias[n % kStages] + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(key_decay_bias + 2 * i);
      x[i] = fmaf(s[i], scale, pair.x);
      x[i + 1] = fmaf(s[i + 1], scale, pair.y);
      x[i + 2] = fmaf(s[i + 2], scale, pair.x);
      x[i + 3] = fmaf(s[i + 3], scale, pair.y);
    }
  }

  // Masks keys after the row's own, if that lies in this tile, and keys before first_key.
  __device__ __forceinline__ void Mask(float (&s)[64], const Work& work_tile) {
    const int first = work_tile.first_key(), column = 2 * (lane_ % 4) - first;
    const int own = work_tile.own_key() + row_ - first;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const auto at = static_cast<uint32_t>(column + i / 4 * 8 + i % 2);
      if (at > static_cast<uint32_t>(own + i / 2 % 2 * 8)) s[i] = -INFINITY;
    }
  }

  // Largest scores of the thread's keys in its two rows.
  __device__ __forceinline__ void MaxScores(const float (&s)[64], float (&row_max)[2]) {
    float a[4] = {s[0], s[2], s[1], s[3]};
#pragma unroll
    for (int i = 4; i < 64; i += 4) {
      a[0] = fmaxf(a[0], s[i]);
      a[1] = fmaxf(a[1], s[i + 2]);
      a[2] = fmaxf(a[2], s[i + 1]);
      a[3] = fmaxf(a[3], s[i + 3]);
    }
    row_max[0] = fmaxf(a[0], a[2]);
    row_max[1] = fmaxf(a[1], a[3]);
  }

  // Decay since the work tile's first row, in log2 units; the start tile's biases are still in
  // shared memory. 0 left of the diagonal tile, whose keys all precede that row.
  __device__ __forceinline__ float DecayOfRow(const Work& work_tile, int row) const {
    if (!work_tile.on_diagonal()) return 0;
    const int key = min(work_tile.own_key() + row, kTileKeys - 1);
    return shared_.key_decay_bias[counter_ % kStages][key];
  }

  // The first tile sets the pivots, later tiles raise them if needed, and scores become relative to
  // them. A pivot is 0 where nothing can overflow, because each instruction beside products costs
  // time. Only products with values of earlier tiles may be in flight.
  template <bool kFirst>
  __device__ __forceinline__ void SetPivots(float (&s)[64], const Work& work_tile) {
    float row_max[2];
    if constexpr (kFirst) {
      if (work_tile.on_diagonal() || work_tile.first_key() > 0) Mask(s, work_tile);
      bool needs_pivot[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        reference_max_[r] = 0;
        needs_pivot[r] = track_max_ || DecayOfRow(work_tile, row_ + 8 * r) > kBoundedDecay;
      }
      has_pivots_ = __any_sync(kAllLanes, needs_pivot[0] || needs_pivot[1]) != 0;
      if (has_pivots_) {
        MaxScores(s, row_max);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float high = QuadMax(row_max[r]);
          if (needs_pivot[r]) reference_max_[r] = high;
        }
      }
    } else if (track_max_) {
      MaxScores(s, row_max);
      const bool high =
          row_max[0] > reference_max_[0] + kLazyLog2 || row_max[1] > reference_max_[1] + kLazyLog2;
      // The warpgroup decides together because it can wait for products only as a whole.
      if (WarpgroupAny(high, half_)) RaisePivots(row_max);
    }
    if (has_pivots_) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] -= reference_max_[i / 2 % 2];
    }
  }

  __device__ __forceinline__ void RaisePivots(const float (&row_max)[2]) {
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float high = QuadMax(row_max[r]);
      // Decided per row, because other sequences must not change its bits.
      const float reference_max = high > reference_max_[r] + kLazyLog2 ? high : reference_max_[r];
      rescale[r] = Exp2(reference_max_[r] - reference_max);
      reference_max_[r] = reference_max;
    }
    products_.WaitForAll();
    products_.Rescale(rescale);
  }

  __device__ __forceinline__ void Exponentiate(float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] = Exp2(s[i]);
  }

  // True if no row of this half needs tile counter_ or any left of it (acp.md 2d). Sums over the
  // keys visited so far suffice. Heads that do not forget usually test once and are far from it.
  __device__ __forceinline__ bool MayStop(const Work& work_tile) {
    const float stop_at = shared_.stop_at[counter_ % kStages];
    if (!__any_sync(kAllLanes, stop_at < ask_below_)) return false;  // alike in all lanes
    products_.WaitForAll();
    bool close = true, proven = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = row_ + 8 * r < work_tile.count;
      const float mass = products_.sums[2 * r] * Exp2(reference_max_[r] - stop_at);
      close = close && (!real || mass >= 1.0f / (1 << kFarLog2));
      proven = proven && (!real || mass >= 1.0f);
    }
    if (WarpgroupAny(!close, half_)) {
      ask_below_ = stop_at - kFarLog2;
      return false;
    }
    return !WarpgroupAny(!proven, half_);
  }

  // A test costs a few percent of a tile: short loops never test, long ones seldom. A mask, because
  // a remainder by a variable takes hundreds of cycles; `visited` comes from registers, because
  // every tile waits for this.
  __device__ __forceinline__ bool IsTimeToAsk() const {
    const uint32_t visited = counter_ - begin_;
    return (visited & (visited < 8 ? 3 : 7)) == 0;
  }

  // --- KV loops: over tiles counter_, counter_ + 1, ...; afterwards counter_ is past the last one
  // visited and all products but those with its values are done.

  // Scores of the first tile.
  __device__ __forceinline__ void BeginKvLoop(float (&s)[64]) {
    products_.Clear();
    ask_below_ = INFINITY;
    WaitForKeys(counter_);
    products_.IssueScores(s, counter_);
    WgmmaWait<0>();
    WarpgroupFenceOperand(s);
  }

  // With registers for the scores of two tiles, the scores of the next are computed during the
  // softmax of this one, a half's turn. Shaped for ptxas, which makes products wait for each other
  // when it cannot follow them: no product is conditional while others are in flight (after the
  // last tile, scores of the next slot's contents are computed and dropped), and outputs are
  // touched only where nothing else is in flight.
  __device__ __forceinline__ void IntraWarpgroupPipelined(const Work& work_tile) {
    float s[64];
    int more = FromLane(work_tile.num_kv_tiles - 1, 0);
    BeginKvLoop(s);
    StepAhead<true>(s, work_tile, more);
    for (; more > 0; --more) {
      if constexpr (kCertified) {
        if (IsTimeToAsk() && MayStop(work_tile)) break;
      }
      StepAhead<false>(s, work_tile, more - 1);
    }
  }

  // Advances from tile counter_'s scores to the next tile's; `more`: tiles after counter_. Except
  // at first, the products with the previous values are in flight. A half waits for no loads in its
  // turn.
  template <bool kFirst>
  __device__ __forceinline__ void StepAhead(float (&s)[64], const Work& work_tile, int more) {
    if (more > 0) WaitForKeys(counter_ + 1);
    WaitForTurn();
    float x[64];
    AddBias(s, counter_, x);
    SetPivots<kFirst>(x, work_tile);
    ReleaseKeys(counter_);
    products_.IssueScores(s, counter_ + 1);
    Exponentiate(x);
    if constexpr (!kFirst) {
      products_.WaitForAllButScores();
      ReleaseValues(counter_ - 1);
    }
    products_.TakeProbs(x);
    SignalPeer();
    WaitForValues(counter_);
    products_.IssueValues(counter_);
    ++counter_;
    WgmmaWait<1>();
    WarpgroupFenceOperand(s);
  }

  // One score buffer: a turn issues the scores of this tile and the values of the one before; the
  // softmax of this tile runs beside the latter and beside the other half's turn.
  __device__ __forceinline__ void PingPong(const Work& work_tile) {
    float s[64];
    const uint32_t end = begin_ + FromLane(work_tile.num_kv_tiles, 0);
    BeginKvLoop(s);
    AddBias(s, counter_, s);
    SetPivots<true>(s, work_tile);
    ReleaseKeys(counter_);
    Exponentiate(s);
    products_.TakeProbs(s);
    for (++counter_; counter_ != end; ++counter_) {
      if constexpr (kCertified) {
        // Not between the next wait and the turn, where ptxas computes the products' addresses:
        // after a branch it would compute them within the turn.
        if (IsTimeToAsk()) {
          WaitForKeys(counter_);
          if (MayStop(work_tile)) break;
        }
      }
      WaitForKeys(counter_);
      WaitForTurn();
      products_.IssueScores(s, counter_);
      WaitForValues(counter_ - 1);
      products_.IssueValues(counter_ - 1);
      SignalPeer();
      WgmmaWait<1>();
      WarpgroupFenceOperand(s);
      AddBias(s, counter_, s);
      ReleaseKeys(counter_);
      SetPivots<false>(s, work_tile);
      Exponentiate(s);
      products_.WaitForAll();
      ReleaseValues(counter_ - 1);
      products_.TakeProbs(s);
    }
    WaitForValues(counter_ - 1);
    products_.IssueValues(counter_ - 1);
  }

  // Skips the work tile's other tiles, which the other half may need.
  __device__ __forceinline__ void Drain(const Work& work_tile, int visited) {
    for (int i = visited; i < work_tile.num_kv_tiles; ++i) {
      if (Plan::kDoubleBufferedScores || i > 0) {
        WaitForTurn();
        SignalPeer();
      }
      const uint32_t n = counter_++;
      WaitForKeys(n);
      bool over = false;
      if constexpr (kCertified) {
        over = shared_.end[n % kStages] != 0;
        if (threadIdx.x % 128 == 0) shared_.needless_for[n % kStages][half_] = n + kStages;
      }
      ReleaseKeys(n);
      WaitForValues(n);
      ReleaseValues(n);
      if (over) break;
    }
  }

  __device__ __forceinline__ void Store(const Work& work_tile) {
    float sum[2] = {products_.sums[0], products_.sums[2]};
    if constexpr (Source::kSplitsKeys) {
      const bool serial = source_.IsSerial(work_tile);
      if (!serial && source_.IsSplit(work_tile)) {
        return StorePartial<kHeadDim>(source_, work_tile, row_, StopAtNext(work_tile),
                                      products_.out, reference_max_, sum);
      }
      if (serial && !MergeSerial(work_tile, sum)) return;
    }
    StoreRows<kHeadDim>(source_, work_tile, row_, transform_, products_.out, reference_max_, sum);
  }

  __device__ __forceinline__ static float StopAtNext(const Work& work_tile) {
    return kCertified ? work_tile.stop_at_next : INFINITY;
  }

  // Merges a serial split. True if the half's rows are finished: no row needs more splits, or this
  // was the last split.
  __device__ __forceinline__ bool MergeSerial(const Work& work_tile, float (&sum)[2]) {
    const bool last = work_tile.splits_left == 0;
    bool stopped[2];
    MergeSerialSplit<kHeadDim>(source_, work_tile, row_, StopAtNext(work_tile), products_.out,
                               reference_max_, sum, stopped);
    if (!last && !(kCertified && !WarpgroupAny(!(stopped[0] && stopped[1]), half_))) {
      StoreSerialSums<kHeadDim>(source_, work_tile, row_, stopped, products_.out, reference_max_,
                                sum);
      return false;
    }
    ended_serial_ = work_tile.serial;
    if (threadIdx.x % 128 == 0) {
      *static_cast<volatile int32_t*>(&shared_.ended_serial[half_]) = work_tile.serial;
    }
    return true;
  }

  // Pads the log sums of a half without rows, as the source wants it.
  __device__ __forceinline__ void PadLogSums(const Work& work_tile) {
    if (lane_ % 4 != 0) return;
    for (int r = 0; r < 2; ++r) source_.StoreLogSum(work_tile, row_ + 8 * r, false, 0, 0);
  }

  PrefillShared<Source, kHeadDim>& shared_;
  const Source& source_;
  const int half_, lane_, row_;  // row_ and row_ + 8 of the tile are this thread's
  uint32_t count_ = 0;           // of work tiles
  uint32_t counter_ = 0;         // of key/value tiles
  uint32_t begin_ = 0;           // counter_ where the KV loop began
  int ended_serial_ = -1;        // last serial head tile whose further splits this half skips
  PrefillProducts<Source, kHeadDim> products_;
  float ask_below_;                            // the certificate is tested where stop_at is lower
  bool track_max_ = true, has_pivots_ = true;  // the latter: some pivot of the warp is not 0
  float reference_max_[2];
  QuadTransform<kHeadDim> transform_;
};

}  // namespace fox::cuda
