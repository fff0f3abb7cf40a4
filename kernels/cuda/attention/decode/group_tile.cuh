// A warp's half page of keys and values, for up to eight query heads of their kv head: which lane
// has what, and how it comes from memory. For groups.cu only.
//
// With r = lane / 4 and c = lane % 4 a lane has the logits of query r and of keys 8c .. 8c + 7 of
// the half page. Products: S[query, key] = Q K', then O'[dim, query] += V' P'. Keys and dims are
// assigned to rows and columns such that keys and values enter the products as they lie in memory,
// eight dims per lane, and the weights stay in the registers in which they are computed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/copy_async.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace fox::cuda::decode {

template <int kHeadDim>
struct GroupLayout {
  static constexpr int kLaneKeys = 8;  // whose logits and values a lane has
  // Keys: part (j, i) is dims 32 i + 8 c .. + 7 of key r / 2 * 8 + 2 j + r % 2.
  static constexpr int kKeyRows = 4, kKeyParts = kHeadDim / 32;
  // Values: part (k, i) is dims 64 i + 8 r .. + 7 of key 8 c + k.
  static constexpr int kValueParts = kHeadDim / 64;
};

// A lane's query, the first of the keys whose logits and values it has, and the first of those
// whose dims it multiplies.
__device__ inline int LaneQuery(int lane = Lane()) { return lane / 4; }
__device__ inline int LaneFirstKey(int lane = Lane()) { return lane % 4 * 8; }
__device__ inline int LaneKeyRow(int lane = Lane()) {
  return LaneQuery(lane) / 2 * 8 + LaneQuery(lane) % 2;
}

template <int kRowBytes>
__device__ inline const char* HalfPageBegin(const void* pool, const HalfPage& half_page) {
  const int64_t row =
      static_cast<int64_t>(half_page.page) * kPageTokens + half_page.half * kHalfPageKeys;
  return static_cast<const char*>(pool) + row * kRowBytes;
}

// The tile of a warp: holds a half page, then the next one. All members are called by the warp.
// Memory past the valid keys is never read, because it may be NaN: what stands in its place is
// finite.
template <int kHeadDim, typename Part>
class GroupTile;

// Pages in bf16: in registers. The next half page is loaded when this one's values have been used:
// the compiler waits for all loads at the top of the loop, so earlier keys would gain nothing.
template <int kHeadDim>
class GroupTile<kHeadDim, uint4> {
 public:
  struct Room {};  // in shared memory
  __device__ __forceinline__ explicit GroupTile(Room& /*room*/) {}

  __device__ __forceinline__ void Load(const Decode& a, const HalfPage& half_page) {
    ForParts(a, half_page, half_page.valid == kHalfPageKeys,
             [](const char* from, uint4& to) { to = LoadOnce(from); });
  }
  // As LoadTileAgain in loads.cuh.
  __device__ __forceinline__ void LoadAgain(const Decode& a, const HalfPage& half_page) {
    ForParts(a, half_page, false, [](const char* from, uint4& to) {
      to = LoadCoherent(reinterpret_cast<const uint4*>(from));
    });
  }

  // WaitForKeys and WaitForValues return when the half page's keys, or values, can be read.
  __device__ __forceinline__ void WaitForKeys() const {}
  __device__ __forceinline__ void WaitForValues() const {}
  __device__ __forceinline__ const uint4& Key(int j, int i) const { return keys_[j][i]; }
  __device__ __forceinline__ const uint4& Value(int k, int i) const { return values_[k][i]; }
  // NextKeys and NextValues request the next half page's keys and values, in the place of this
  // one's, which the caller has used.
  __device__ __forceinline__ void NextKeys(const Decode& /*a*/, const HalfPage& /*next*/) {}
  __device__ __forceinline__ void NextValues(const Decode& a, const HalfPage& next, bool more) {
    if (more) Load(a, next);
  }

 private:
  using L = GroupLayout<kHeadDim>;
  static constexpr int kRowBytes = kHeadDim * kElementBytes<uint4>;

  // load(from, to) for each part of the lane.
  template <typename Load>
  __device__ __forceinline__ void ForParts(const Decode& a, const HalfPage& half_page, bool whole,
                                           const Load& load) {
    const int last = max(half_page.valid - 1, 0);
    const char* keys = HalfPageBegin<kRowBytes>(a.kv.keys, half_page);
    const char* values = HalfPageBegin<kRowBytes>(a.kv.values, half_page);
    ForRows<2, 64>(keys + LaneKeyRow() * kRowBytes + Lane() % 4 * 16, last - LaneKeyRow(), whole,
                   keys_, load);
    ForRows<1, 128>(values + LaneFirstKey() * kRowBytes + LaneQuery() * 16, last - LaneFirstKey(),
                    whole, values_, load);
  }

  // Row j is kStep * j after the lane's first, at most its `last`; with `whole` all are valid.
  template <int kStep, int kPartBytes, int kRows, int kParts, typename Load>
  static __device__ __forceinline__ void ForRows(const char* first, int last, bool whole,
                                                 uint4 (&rows)[kRows][kParts], const Load& load) {
    if (whole) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          load(first + j * kStep * kRowBytes + i * kPartBytes, rows[j][i]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const char* row = first + min(j * kStep, last) * kRowBytes;
#pragma unroll
        for (int i = 0; i < kParts; ++i) load(row + i * kPartBytes, rows[j][i]);
      }
    }
  }

  uint4 keys_[L::kKeyRows][L::kKeyParts];
  uint4 values_[L::kLaneKeys][L::kValueParts];
};

// Pages in 8 bits: in shared memory, where the next keys are copied as soon as these have been
// used, and the next values likewise. Their arithmetic takes as long as memory, so that the copies
// have to go on meanwhile; and without a tile in registers an SM holds a block more.
template <int kHeadDim>
class GroupTile<kHeadDim, uint2> {
  static constexpr int kPiece = 16, kLine = 128;  // bytes that a lane copies at once; of all banks
  static constexpr int kPartBytes = sizeof(uint2);
  static constexpr int kRowPieces = kHeadDim / kPiece;

 public:
  struct Room {
    alignas(128) unsigned char keys[kHalfPageKeys * kHeadDim];
    alignas(128) unsigned char values[kHalfPageKeys * kHeadDim];
  };
  __device__ __forceinline__ explicit GroupTile(Room& room) : room_(room) {}

  __device__ __forceinline__ void Load(const Decode& a, const HalfPage& half_page) {
    CopyRows(a.kv.keys, half_page, room_.keys);
    CopyRows(a.kv.values, half_page, room_.values);
  }
  __device__ __forceinline__ void LoadAgain(const Decode& a, const HalfPage& half_page) {
    Wait<0>();
    Load(a, half_page);
  }

  __device__ __forceinline__ void WaitForKeys() {
    Wait<1>();
    const int lane = OpaqueThreadIdx() % kWarp;
    at_ = Place(LaneKeyRow(lane), lane % 4 * kPartBytes);
  }
  __device__ __forceinline__ void WaitForValues() {
    Wait<1>();
    const int lane = OpaqueThreadIdx() % kWarp;
    at_ = Place(LaneFirstKey(lane), LaneQuery(lane) * kPartBytes);
  }
  __device__ __forceinline__ uint2 Key(int j, int i) const {
    return PartAt(room_.keys, Place(2 * j, 4 * i * kPartBytes));
  }
  __device__ __forceinline__ uint2 Value(int k, int i) const {
    return PartAt(room_.values, Place(k, 8 * i * kPartBytes));
  }
  __device__ __forceinline__ void NextKeys(const Decode& a, const HalfPage& next) {
    __syncwarp();
    CopyRows(a.kv.keys, next, room_.keys);
  }
  __device__ __forceinline__ void NextValues(const Decode& a, const HalfPage& next, bool /*more*/) {
    __syncwarp();
    CopyRows(a.kv.values, next, room_.values);
  }

 private:
  // Where a byte of a row lies. The pieces of 128 bytes, which are one row or two, are permuted
  // such that lanes that read at the same time use different banks.
  static __device__ __forceinline__ int Place(int row, int byte) {
    constexpr int kLineRows = kLine / kHeadDim;
    const int turn = row / 8 * 2 ^ (kLineRows == 1 ? row % 2 * 4 : 0);
    const int at = row % kLineRows * kHeadDim + byte;
    return row / kLineRows * kLine + (at / kPiece ^ turn) * kPiece + at % kPiece;
  }
  // The part that lies `away` from the lane's first one: Place is linear in the bits of its
  // arguments, of which the lane's and `away`'s are different ones.
  __device__ __forceinline__ uint2 PartAt(const unsigned char* rows, int away) const {
    return *reinterpret_cast<const uint2*>(rows + (at_ ^ away % kLine) + away / kLine * kLine);
  }

  // Starts copying rows, as one group of copies; zeros instead of those past the valid keys.
  static __device__ __forceinline__ void CopyRows(const void* pool, const HalfPage& half_page,
                                                  unsigned char* to) {
    constexpr int kRowsAtOnce = kWarp / kRowPieces;
    const int lane = OpaqueThreadIdx() % kWarp;  // addresses would take registers between the calls
    const char* from = HalfPageBegin<kHeadDim>(pool, half_page) + lane * kPiece;
    const uint32_t shared = SharedAddress(to);
#pragma unroll
    for (int n = 0; n < kRowPieces; ++n) {
      const int row = n * kRowsAtOnce + lane / kRowPieces;
      CopyAsync16OrZero(shared + Place(row, lane % kRowPieces * kPiece), from + n * kWarp * kPiece,
                        row < half_page.valid);
    }
    CommitCopies();
  }

  // Returns when all but the last kPending groups of copies are there for all lanes.
  template <int kPending>
  static __device__ __forceinline__ void Wait() {
    WaitCopies<kPending>();
    __syncwarp();
  }

  Room& room_;
  int at_ = 0;  // where the lane's first key or value lies; not kept in between, to save registers
};

}  // namespace fox::cuda::decode
