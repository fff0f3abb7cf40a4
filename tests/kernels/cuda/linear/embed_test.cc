// Embed and GatherRows against the host.
#include "kernels/cuda/linear/embed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/test_matrix.h"

namespace fox::cuda {
namespace {

using testing::DeviceArray;
using testing::TestMatrix;
using testing::Uniform;

// Three sequences of 2, 1 and 4 rows, the second one padding. Slot 5 drew an id past the end.
class EmbedTest : public ::testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 11;
  EmbedTest() {
    batch_.num_seqs = 3;
    batch_.num_rows = 7;
    batch_.token_ids = ids_.data();
    batch_.slot = slot_.data();
    batch_.row_begin = row_begin_.data();
    batch_.sampled_tokens = sampled_.data();
  }

  // Exact in every dtype; the first column tells rows apart, the others columns.
  static float Value(int64_t id, int64_t c) {
    return static_cast<float>(c == 0 ? 32 * id : c % 97);
  }

  void ExpectRows(const TestMatrix& out, const std::vector<int64_t>& ids) {
    for (int64_t r = 0; r < out.rows(); ++r) {
      for (int64_t c = 0; c < out.cols(); ++c) {
        ASSERT_EQ(out.At(r, c), Value(ids[static_cast<size_t>(r)], c)) << r << " " << c;
      }
    }
  }

  DeviceArray<int32_t> ids_{
      std::vector<int32_t>{3, kLastSampledToken, kLastSampledToken, 40, -9, 10, kLastSampledToken}};
  DeviceArray<int32_t> slot_{std::vector<int32_t>{2, -1, 5}};
  DeviceArray<int64_t> row_begin_{std::vector<int64_t>{0, 2, 3, 7}};
  DeviceArray<int32_t> sampled_{std::vector<int32_t>{8, 8, 7, 8, 8, 1000}};
  BatchView batch_;
};

TEST_F(EmbedTest, ReplacesSampledTokensAndClamps) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t cols : {8, 384, 2056}) {
      TestMatrix table(dtype, kVocabulary, cols, 8);
      for (int64_t r = 0; r < kVocabulary; ++r) {
        for (int64_t c = 0; c < cols; ++c) table.At(r, c) = Value(r, c);
      }
      table.Upload();
      TestMatrix out(DType::kF32, 7, cols, 4);
      batch_.sampled_tokens = sampled_.data();
      ASSERT_EQ(Embed(batch_, table.view(), out.view(), nullptr), cudaSuccess);
      out.Download();
      ExpectRows(out, {3, 7, 0, 10, 0, 10, 10});
      batch_.sampled_tokens = nullptr;
      ASSERT_EQ(Embed(batch_, table.view(), out.view(), nullptr), cudaSuccess);
      out.Download();
      ExpectRows(out, {3, 0, 0, 10, 0, 10, 0});
    }
  }
}

TEST_F(EmbedTest, ReadsHalfPrecision) {
  constexpr int64_t kCols = 16;
  // 1, 2, 4 ... as f16: exponent bias 15, in bits 10 to 14.
  std::vector<uint16_t> table(kVocabulary * kCols);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint16_t>((15 + i % 16) << 10 | (i / kCols));
  }
  const DeviceArray<uint16_t> device_table(table);
  TestMatrix out(DType::kF32, 7, kCols, 0);
  const MatrixView view{device_table.data(), DType::kF16, kVocabulary, kCols, kCols};
  ASSERT_EQ(Embed(batch_, view, out.view(), nullptr), cudaSuccess);
  out.Download();
  const int64_t ids[] = {3, 7, 0, 10, 0, 10, 10};
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t c = 0; c < kCols; ++c) {
      const float want = std::ldexp(1 + static_cast<float>(ids[r]) / 1024, static_cast<int>(c));
      ASSERT_EQ(out.At(r, c), want) << r << " " << c;
    }
  }
}

TEST(GatherRowsTest, CopiesRows) {
  Uniform uniform(1);
  TestMatrix in(DType::kF32, 9, 1544, 4);
  in.FillUniform(uniform, 1);
  TestMatrix out(DType::kF32, 4, 1544, 8);
  const std::vector<int64_t> rows = {8, 0, 3, 3};
  const DeviceArray<int64_t> device_rows(rows);
  ASSERT_EQ(GatherRows(in.view(), device_rows.data(), out.view(), nullptr), cudaSuccess);
  out.Download();
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 1544; ++c) {
      ASSERT_EQ(out.At(r, c), in.At(rows[static_cast<size_t>(r)], c));
    }
  }
}

}  // namespace
}  // namespace fox::cuda
