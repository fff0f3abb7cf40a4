// Rows of W in 8 bits as the GPU keeps them: e4m3 codes, and a power of two for each row (e4m3.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/core/e4m3.h"
#include "kernels/core/host_device.h"
#include "kernels/core/load_element.h"
#include "kernels/core/matrix_view.h"
#include "kernels/core/thread_pool.h"

namespace fox::cuda {

// Columns of a tensor core product, kept together.
inline constexpr int kFp8Step = 16;

// Bytes between rows: whole lines of the boxes in which they are copied, zeros past the last
// column.
FOX_HOST_DEVICE constexpr int64_t Fp8Stride(int64_t cols) { return (cols + 127) / 128 * 128; }

// Four codes as lane t of a tensor core product wants them, by two instructions or five. Each half
// of the word has one of columns 2t and 2t + 1 in the place of bf16's bits (sign 15, the others
// from 10 to 4), and in the rest one of 2t + 8 and 2t + 9 (upper bits of the exponent 14 to 12,
// sign 11, the others 3 to 0).
constexpr uint32_t Fp8Word(const uint8_t* lane) {
  const auto half = [](uint32_t lower, uint32_t upper) {
    return (lower & 0x80u) << 8 | (lower & 0x7fu) << 4 | (upper & 0x70u) << 8 |
           (upper & 0x80u) << 4 | (upper & 0x0fu);
  };
  return half(lane[1], lane[9]) << 16 | half(lane[0], lane[8]);
}

// Two of the four in the place of bf16's bits, which are then 2^-120 times the numbers, subnormal
// or not.
FOX_HOST_DEVICE constexpr uint32_t Fp8Pair(uint32_t word, bool upper) {
  return upper ? (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u) : word & 0x87f087f0u;
}

struct Fp8Rows {
  std::vector<uint8_t> codes;  // [rows, Fp8Stride(cols)]; a step is four words
  std::vector<float> scales;   // [rows]
};

// Encodes rows in host memory, by all threads of the pool; exactly, if EncodeE4M3 has rounded them
// before.
inline Fp8Rows EncodeFp8Rows(const MatrixView& rows, ThreadPool& pool) {
  const int64_t stride = Fp8Stride(rows.cols);
  Fp8Rows out{std::vector<uint8_t>(static_cast<size_t>(rows.rows * stride)),
              std::vector<float>(static_cast<size_t>(rows.rows))};
  // Each thread has a part of the rows, and scratch that is allocated here, where it may throw.
  const int64_t parts = pool.threads();
  std::vector<float> numbers(static_cast<size_t>(parts * stride));  // zeros past the last column
  std::vector<uint8_t> scratch(numbers.size());
  pool.ForEach(parts, rows.rows * stride >= kParallelElements, [&](int64_t part) {
    float* const row = numbers.data() + part * stride;
    uint8_t* const codes = scratch.data() + part * stride;
    for (int64_t n = rows.rows * part / parts; n < rows.rows * (part + 1) / parts; ++n) {
      LoadElements(rows, n, row);
      out.scales[static_cast<size_t>(n)] = PowerOfTwo(EncodeE4M3(row, stride, codes));
      uint8_t* to = out.codes.data() + n * stride;
      for (int64_t i = 0; i < stride; i += 4, to += 4) {
        const int64_t step = i / kFp8Step * kFp8Step;
        const uint32_t word = Fp8Word(codes + step + (i - step) / 2);
        std::memcpy(to, &word, sizeof(word));
      }
    }
  });
  return out;
}

}  // namespace fox::cuda
