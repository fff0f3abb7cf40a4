// A consumer warpgroup of BackwardSm90: 64 keys of an item's 128, through all of its steps. Scores
// are computed with keys as rows (S^T = K Q^T), so that weights and their gradients, in the
// registers that they are computed in, are the left operands of the products for dV and dK; dS also
// goes to shared memory, where both warpgroups read it for dQ.
//
// A step issues its five products in this order; beside each, the work of the warps that runs while
// the tensor cores compute it:
//   S^T = K Q^T     results of the step before are handed on
//   dP^T = V dO^T   exponentials
//   dV += P^T dO    dS to shared memory
//   dQ = dS K       row sums of dS
//   dK += dS^T Q    dQ to shared memory
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/backward/sm90/plan.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace fox::cuda {

// Named barriers; 0 is __syncthreads.
inline constexpr int kDsFull = 1;  // both warpgroups have written dS
inline constexpr int kDsFree = 2;  // + warpgroup: the other one has read dS, this one may write
inline constexpr int kConsumerThreads = 128 * kWarpgroups;

template <int kHeadDim>
class BackwardConsumer {
 public:
  __device__ BackwardConsumer(BackwardShared<kHeadDim>& shared, const BackwardArguments& arguments,
                              int warpgroup)
      : shared_(shared), arguments_(arguments), warpgroup_(warpgroup), lane_(Lane()) {}

  __device__ __forceinline__ void Run() {
    ArriveAtBarrier<kConsumerThreads>(kDsFree + (warpgroup_ ^ 1));
    for (uint32_t n = 0;; ++n) {
      const uint32_t slot = n % kItemSlots;
      shared_.item_full[slot].Wait(n / kItemSlots % 2);
      const BackwardItem& item = shared_.items[slot];
      if (item.tokens == 0) break;
      RunItem(n);
      Store(arguments_.dv, item, dv_, 1.0f);
      Store(arguments_.dk, item, dk_, arguments_.scale);
      Release(shared_.item_empty[slot]);
    }
    shared_.dq_empty.Wait(step_ % 2 ^ 1);
    if (warpgroup_ == 0 && threadIdx.x % 128 == 0) shared_.adding.row = -1;
    Release(shared_.dq_full);
  }

 private:
  using Plan = BackwardPlan<kHeadDim>;
  static constexpr int kRows = Plan::kRows;
  static constexpr int kSteps = kRows / 16;             // instructions of dV and dK
  static constexpr int kDqParts = kSteps / 2;           // in which dQ is stored
  static constexpr int kDqSums = Plan::kDqColumns / 2;  // of a thread

  // In its warpgroup; not worth a register.
  static __device__ __forceinline__ int warp() { return OpaqueThreadIdx() % 128 / kWarp; }

  __device__ __forceinline__ void Release(Mbarrier& empty) {
    __syncwarp();
    if (lane_ == 0) empty.Arrive();
  }

  __device__ __forceinline__ void RunItem(uint32_t n) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dv_[i] = dk_[i] = 0;
    const uint32_t v_slot = 2 * n % Plan::kKvSlots, k_slot = (2 * n + 1) % Plan::kKvSlots;
    shared_.kv_full[v_slot].Wait(2 * n / Plan::kKvSlots % 2);
    shared_.kv_full[k_slot].Wait((2 * n + 1) / Plan::kKvSlots % 2);
    const uint32_t tiles = SharedAddress(shared_.tiles);
    keys_ = tiles + k_slot * Plan::kKeyTileBytes;
    values_ = tiles + v_slot * Plan::kKeyTileBytes;
    float s[kRows / 2];
    IssueFirstProduct(s);
    for (;;) {  // one way out: where products may run or not, ptxas waits for each instruction
      const int flags = Step(s);
      if ((flags & kLastOfItem) != 0) break;
      IssueFirstProduct(s);
      FinishStep<1>(flags);
    }
    FinishStep<0>(kLastOfHead);
    Release(shared_.kv_empty[v_slot]);
    Release(shared_.kv_empty[k_slot]);
  }

  // S of the step `step_`, the only product that runs from one turn of the loop to the next.
  __device__ __forceinline__ void IssueFirstProduct(float (&s)[kRows / 2]) {
    const uint32_t slot = step_ % kStepSlots, phase = step_ / kStepSlots % 2;
    shared_.q_full[slot].Wait(phase);
    IssueScores(s, keys_, Plan::QueryAt(slot));
  }

  // The step `step_`, of which S has been issued; leaves dK running. Gives the step's flags.
  __device__ __forceinline__ int Step(float (&s)[kRows / 2]) {
    const uint32_t slot = step_ % kStepSlots, phase = step_ / kStepSlots % 2;
    float dp[kRows / 2];
    const BackwardStep& step = shared_.steps[slot];
    shared_.do_full[slot].Wait(phase);
    IssueScores(dp, values_, Plan::GradientAt(slot));
    const float2 bias = KeyBiases(slot, step);
    WgmmaWait<1>();
    WarpgroupFenceOperand(s);
    Exponentiate(s, slot, step, bias);
    WgmmaWait<0>();
    WarpgroupFenceOperand(dp);

    uint32_t p[kRows / 4], ds[kRows / 4];
    float row_sums[kRows / 4];
    Differentiate(s, dp, slot, p, ds, row_sums);
    IssueProduct<0, kSteps>(dv_, p, Plan::GradientAt(slot));
    SyncThreads<kConsumerThreads>(kDsFree + warpgroup_);
    StoreScores(ds);
    FenceAsyncProxy();
    SyncThreads<kConsumerThreads>(kDsFull);
    WgmmaWait<0>();  // frees P's registers: without them ptxas adds row sums before the barrier
    WarpgroupFenceOperand(dv_);
    float dq[kDqSums];
    IssueQueryGradients(dq);
    IssueProduct<0, kSteps / 4>(dk_, ds, Plan::QueryAt(slot));  // runs while dQ is waited for
    Release(shared_.do_empty[slot]);
    ScatterSums(row_sums);
    WgmmaWait<1>();
    WarpgroupFenceOperand(dq);
    ArriveAtBarrier<kConsumerThreads>(kDsFree + (warpgroup_ ^ 1));
    shared_.dq_empty.Wait(step_ % 2 ^ 1);
    IssueProduct<kSteps / 4, kSteps>(dk_, ds, Plan::QueryAt(slot), [&](int k) {
      const int part = k - kSteps / 4;
      if (part < kDqParts) StoreQueryGradients(dq, part);
      if (part == kDqParts) StoreRowSums(row_sums, step);
    });
    ++step_;
    return step.flags;
  }

  // Hands on the results of the step before `step_`, behind whose products kPending more run.
  template <int kPending>
  __device__ __forceinline__ void FinishStep(int flags) {
    const uint32_t slot = (step_ - 1) % kStepSlots;
    FenceAsyncProxy();
    Release(shared_.dq_full);
    WgmmaWait<kPending>();
    WarpgroupFenceOperand(dk_);
    if ((flags & kLastOfHead) != 0) StoreSums(shared_.steps[slot]);
    Release(shared_.q_empty[slot]);
  }

  // --- products

  // The descriptor of what lies `bytes` further on. As an addition to the low word it leaves the
  // high one a constant; ptxas would keep both words of a 64-bit sum in registers.
  static __device__ __forceinline__ uint64_t MoveDescriptor(uint64_t descriptor, uint32_t bytes) {
    return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + bytes / 16);
  }

  // s = this warpgroup's rows of the key tile at `keys` times all rows of the one at `rows`.
  __device__ __forceinline__ void IssueScores(float (&s)[kRows / 2], uint32_t keys, uint32_t rows) {
    constexpr uint32_t kGroup = 8 * Plan::kLineBytes;
    const uint64_t a = MatrixDescriptor(
        keys + static_cast<uint32_t>(warpgroup_) * kWarpgroupKeys * Plan::kLineBytes, 16, kGroup,
        Plan::kSwizzle);
    const uint64_t b =
        MatrixDescriptor(SharedAddress(shared_.tiles) + rows, 16, kGroup, Plan::kSwizzle);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint32_t block = step * 32 / Plan::kLineBytes, at = step * 32 % Plan::kLineBytes;
      const uint64_t a_step = MoveDescriptor(a, block * Plan::kKeyBlockBytes + at);
      const uint64_t b_step = MoveDescriptor(b, block * Plan::kRowBlockBytes + at);
      if (step == 0) {
        WgmmaQk<true>(s, a_step, b_step);
      } else {
        WgmmaQk<false>(s, a_step, b_step);
      }
    }
    WgmmaCommit();
  }

  // sums += (weights in registers) times the row tile at `rows`: instructions kFirst to kEnd - 1,
  // of 16 rows each, the k-th followed by work(k).
  template <int kFirst, int kEnd, typename Work>
  __device__ __forceinline__ void IssueProduct(float (&sums)[kHeadDim / 2],
                                               const uint32_t (&w)[kRows / 4], uint32_t rows,
                                               const Work& work) {
    const uint64_t b = MatrixDescriptor(SharedAddress(shared_.tiles) + rows, Plan::kRowBlockBytes,
                                        8 * Plan::kLineBytes, Plan::kSwizzle);
    WgmmaFence();
#pragma unroll
    for (int step = kFirst; step < kEnd; ++step) {
      WgmmaValues(sums, w, step, MoveDescriptor(b, step * 16 * Plan::kLineBytes));
      work(step);
    }
    WgmmaCommit();
  }
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void IssueProduct(float (&sums)[kHeadDim / 2],
                                               const uint32_t (&w)[kRows / 4], uint32_t rows) {
    IssueProduct<kFirst, kEnd>(sums, w, rows, [](int) {});
  }

  // dq = dS K: half of the rows, or with 64 of them half of the columns.
  __device__ __forceinline__ void IssueQueryGradients(float (&dq)[kDqSums]) {
    const uint32_t tiles = SharedAddress(shared_.tiles), half = static_cast<uint32_t>(warpgroup_);
    const uint32_t rows = kRows == 128 ? half * 64 * 128 : 0;
    const uint32_t keys = keys_ + (kRows == 128 ? 0 : half * Plan::kKeyBlockBytes);
    const uint64_t a = MatrixDescriptor(tiles + Plan::kDsAt + rows, 16, 8 * 128, Swizzle::k128);
    const uint64_t b =
        MatrixDescriptor(keys, Plan::kKeyBlockBytes, 8 * Plan::kLineBytes, Plan::kSwizzle);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kVarlenTile / 16; ++step) {
      const uint64_t a_step = MoveDescriptor(a, step / 4 * Plan::kDsBlockBytes + step % 4 * 32);
      const uint64_t b_step = MoveDescriptor(b, step * 16 * Plan::kLineBytes);
      if (step == 0) {
        WgmmaRows<true>(dq, a_step, b_step);
      } else {
        WgmmaRows<false>(dq, a_step, b_step);
      }
    }
    WgmmaCommit();
  }

  // --- weights. Element 4 i + e of a thread: key key() + 8 (e / 2), row 8 i + 2 (lane % 4) + e
  // % 2.

  __device__ __forceinline__ int key() const {
    return warpgroup_ * kWarpgroupKeys + warp() * 16 + lane_ / 4;
  }

  // The biases of the thread's two keys, which Exponentiate adds to their logits. They depend on
  // the gates alone, so they are computed while S runs.
  __device__ __forceinline__ float2 KeyBiases(uint32_t slot, BackwardStep step) const {
    const float* key_offset = shared_.key_offset[slot] + key();
    const bool seen = warpgroup_ != 0 || (step.flags & kSecondPage) == 0;
    const float ref = seen ? step.ref : -INFINITY;
    return {ref - kLog2E * key_offset[0], ref - kLog2E * key_offset[8]};
  }

  __device__ __forceinline__ void Exponentiate(float (&s)[kRows / 2], uint32_t slot,
                                               const BackwardStep& step, const float2& bias) {
    const float scale = arguments_.scale_log2;
    const float* lse = shared_.lse[slot] + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 4) {
      const float2 log_sum = *reinterpret_cast<const float2*>(lse + 2 * i);
      s[i] = Exp2(fmaf(s[i], scale, bias.x - log_sum.x));
      s[i + 1] = Exp2(fmaf(s[i + 1], scale, bias.x - log_sum.y));
      s[i + 2] = Exp2(fmaf(s[i + 2], scale, bias.y - log_sum.x));
      s[i + 3] = Exp2(fmaf(s[i + 3], scale, bias.y - log_sum.y));
    }
    if ((step.flags & kDiagonal) != 0) Mask(s, step.row % kVarlenTile);
  }

  // Rows before their key; the first of the rows is `first` of its tile.
  __device__ __forceinline__ void Mask(float (&s)[kRows / 2], int first) {
    const int row = first + 2 * (lane_ % 4) - key();
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      if (row + i / 4 * 8 + i % 2 < i / 2 % 2 * 8) s[i] = 0;
    }
  }

  // dS = P (dP - delta), both as operands; and, of float32, this thread's part of the sums over
  // keys, row_sums[2 i + e] of row 8 i + 2 (lane % 4) + e, and over rows. The gate's gradient is a
  // difference of such sums that almost cancels; sums of rounded values would double its error.
  __device__ __forceinline__ void Differentiate(const float (&p)[kRows / 2],
                                                const float (&dp)[kRows / 2], uint32_t slot,
                                                uint32_t (&weights)[kRows / 4],
                                                uint32_t (&ds)[kRows / 4],
                                                float (&row_sums)[kRows / 4]) {
    const float* delta = shared_.delta[slot] + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 4) {
      const float2 d = *reinterpret_cast<const float2*>(delta + 2 * i);
      weights[i / 2] = PackBf16(p[i], p[i + 1]);
      weights[i / 2 + 1] = PackBf16(p[i + 2], p[i + 3]);
      const float a = p[i] * (dp[i] - d.x), b = p[i + 1] * (dp[i + 1] - d.y);
      const float a8 = p[i + 2] * (dp[i + 2] - d.x), b8 = p[i + 3] * (dp[i + 3] - d.y);
      ds[i / 2] = PackBf16(a, b);
      ds[i / 2 + 1] = PackBf16(a8, b8);
      row_sums[i / 2] = a + a8;
      row_sums[i / 2 + 1] = b + b8;
      col_sum_[0] += a + b;
      col_sum_[1] += a8 + b8;
    }
  }

  // Stores dS to shared memory for the product dQ: a line for each row, a column for each of this
  // warpgroup's keys. Row r of eight goes to line r % 2 * 4 + r / 2, so that the lanes that later
  // store dQ together have rows 0, 2, 4, 6 or 1, 3, 5, 7: rows in sequence would meet in half of
  // the banks, because of the swizzle.
  __device__ __forceinline__ void StoreScores(const uint32_t (&ds)[kRows / 4]) {
    const uint32_t block = SharedAddress(shared_.tiles) + Plan::kDsAt +
                           static_cast<uint32_t>(warpgroup_) * Plan::kDsBlockBytes;
    const int line = lane_ % 2 * 4 + lane_ % 8 / 2, chunk = 2 * warp() + lane_ / 8 % 2;
    const uint32_t address =
        block + static_cast<uint32_t>((lane_ / 16 * 8 + line) * 128 + (chunk ^ line) * 16);
#pragma unroll
    for (int i = 0; i < kRows / 4; i += 4) {
      StoreTransposed(address + i * 512, ds[i], ds[i + 1], ds[i + 2], ds[i + 3]);
    }
  }

  // --- results

  // Part `part` of kDqParts. Rows are permuted as in StoreScores.
  __device__ __forceinline__ void StoreQueryGradients(const float (&dq)[kDqSums], int part) {
    constexpr int kPart = kDqSums / kDqParts;
    const int quad_lane = lane_ % 4, row = lane_ / 4 % 4 * 2 + lane_ / 16;
    const int first_row = (kRows == 128 ? warpgroup_ * 64 : 0) + warp() * 16;
    const uint32_t first_block = kRows == 128 ? 0 : static_cast<uint32_t>(warpgroup_) * 2;
    uint8_t* tile = shared_.tiles + Plan::kDqAt + first_block * Plan::kDqBlockBytes +
                    static_cast<uint32_t>(first_row + row) * 128 + quad_lane % 2 * 8;
#pragma unroll
    for (int i = part * kPart; i < (part + 1) * kPart; i += 4) {
      const int column = 2 * i, chunk = column % 32 / 4;  // + quad_lane / 2
      uint8_t* to = tile + column / 32 * Plan::kDqBlockBytes + ((chunk + quad_lane / 2) ^ row) * 16;
      *reinterpret_cast<float2*>(to) = float2{dq[i], dq[i + 1]};
      *reinterpret_cast<float2*>(to + 8 * 128) = float2{dq[i + 2], dq[i + 3]};
    }
  }

  // Stores the lane's sums of rows of dS, which the adder adds to global memory together with dQ.
  // After ScatterSums a lane has kRows / 32 sums, in pairs 8 rows apart.
  __device__ __forceinline__ void StoreRowSums(const float (&row_sums)[kRows / 4],
                                               const BackwardStep& step) {
    constexpr int kOwn = kRows / 32;
    float* sums =
        shared_.row_sums[warpgroup_ * 4 + warp()] + lane_ / 4 * (4 * kOwn) + 2 * (lane_ % 4);
#pragma unroll
    for (int k = 0; k < kOwn; k += 2) {
      *reinterpret_cast<float2*>(sums + 4 * k) = float2{row_sums[k], row_sums[k + 1]};
    }
    if (warpgroup_ == 0 && threadIdx.x % 128 == 0) shared_.adding = step;
  }

  // Stores the head's sums over rows and resets them for the next head.
  __device__ __forceinline__ void StoreSums(const BackwardStep& step) {
    float* to = arguments_.gradients.col_sum + (step.row - step.turn * kRows) + key();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(col_sum_[r]);
      if (lane_ % 4 == 0) to[8 * r] = sum;
      col_sum_[r] = 0;
    }
  }

  __device__ __forceinline__ void Store(const VarlenView& view, const BackwardItem& item,
                                        const float (&sums)[kHeadDim / 2], float scale) {
    const int quad_lane = lane_ % 4;
    auto* to = view.At<__nv_bfloat16>(item.batch, item.token + key(), item.kv_head) + 8 * quad_lane;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = key() + 8 * r < item.tokens;
#pragma unroll
      for (int b = 0; b < kHeadDim / 8; b += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = 4 * (b + j) + 2 * r;
          words[j] = PackBf16(sums[i] * scale, sums[i + 1] * scale);
        }
        const uint4 vector = QuadTranspose(words, quad_lane);
        if (real) *reinterpret_cast<uint4*>(to + 8 * r * view.token_stride + 8 * b) = vector;
      }
    }
  }

  BackwardShared<kHeadDim>& shared_;
  const BackwardArguments& arguments_;
  const int warpgroup_, lane_;
  uint32_t step_ = 0;
  uint32_t keys_ = 0, values_ = 0;  // in shared memory
  float dv_[kHeadDim / 2], dk_[kHeadDim / 2];
  float col_sum_[2] = {0, 0};
};

}  // namespace fox::cuda
