// Rows of head_dim bf16 in shared memory, laid out for ldmatrix. For .cu files only.
#pragma once

namespace fox::cuda {

// Rows in chunks of 16 bytes. Chunks are permuted within a row so that the same chunk of 8
// consecutive rows, which is what ldmatrix reads, covers all banks.
template <int kHeadDim>
struct RowLayout {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kBytes = kHeadDim * 2;
  __device__ static constexpr int Offset(int row, int chunk) {
    constexpr int kRowsPerLine = kChunks < 8 ? 8 / kChunks : 1;
    constexpr int kMask = kChunks < 8 ? kChunks - 1 : 7;
    return row * kBytes + (chunk ^ (row / kRowsPerLine & kMask)) * 16;
  }
};

}  // namespace fox::cuda
