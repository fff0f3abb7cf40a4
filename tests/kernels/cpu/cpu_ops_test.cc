// Matrix products and row-wise operations of the CPU backend against plain float64 loops.
#include "kernels/cpu/cpu_ops.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

namespace fox {
namespace {

std::vector<float> Random(int64_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = normal(rng);
  return values;
}

MatrixView View(std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

double At(const std::vector<float>& values, int64_t i) {
  return static_cast<double>(values[static_cast<size_t>(i)]);
}

struct LinearCase {
  DType dtype;
  bool plain;
  double input_rounding;  // relative error of each product's factors
};

class LinearTest : public ::testing::TestWithParam<LinearCase> {};

// A float32 sum of n terms is off by at most n * 2^-24 of the sum of magnitudes; bf16 factors by
// 2^-9 each.
TEST_P(LinearTest, EqualsTheDefinition) {
  const LinearCase& c = GetParam();
  CpuOps ops({c.dtype, c.plain, 2});
  for (int64_t rows : {1, 3, 4, 5, 64, 65}) {
    for (auto [out, in] :
         {std::pair<int64_t, int64_t>{1, 1}, {31, 7}, {32, 64}, {33, 100}, {300, 257}}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << in << " to " << out);
      std::vector<float> weight = Random(out * in, 1), input = Random(rows * in, 2);
      std::vector<float> bias = Random(out, 3), result = Random(rows * out, 4);
      const std::vector<float> before = result;
      const auto packed = ops.Pack(View(weight, out, in));
      EXPECT_EQ(packed->out(), out);
      EXPECT_EQ(packed->in(), in);
      ops.Linear({.in = View(input, rows, in),
                  .weight = *packed,
                  .bias = bias.data(),
                  .accumulate = true,
                  .out = View(result, rows, out)},
                 nullptr);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < out; ++n) {
          double want = At(before, r * out + n) + At(bias, n);
          double magnitude = std::abs(At(before, r * out + n)) + std::abs(At(bias, n));
          for (int64_t k = 0; k < in; ++k) {
            const double term = At(input, r * in + k) * At(weight, n * in + k);
            want += term;
            magnitude += std::abs(term);
          }
          const double bound =
              magnitude * (c.input_rounding + static_cast<double>(in + 2) * std::exp2(-24));
          ASSERT_NEAR(At(result, r * out + n), want, bound) << "row " << r << " output " << n;
        }
      }
    }
  }
}

// Rows next to each other or apart, of either type: the same values are the same weight.
TEST_P(LinearTest, AWeightIsPackedFromAnyView) {
  constexpr int64_t kOut = 300, kIn = 100, kStride = kIn + 3;
  CpuOps ops({GetParam().dtype, GetParam().plain, 2});
  std::vector<float> apart = Random(kOut * kStride, 1), close, input = Random(kIn, 2), want;
  std::vector<BFloat16> apart_bf16, close_bf16;
  for (size_t i = 0; i < apart.size(); ++i) {
    apart_bf16.emplace_back(apart[i]);
    apart[i] = static_cast<float>(apart_bf16[i]);
    if (static_cast<int64_t>(i) % kStride >= kIn) continue;
    close.push_back(apart[i]);
    close_bf16.push_back(apart_bf16[i]);
  }
  const MatrixView views[] = {{close.data(), DType::kF32, kOut, kIn, kIn},
                              {close_bf16.data(), DType::kBF16, kOut, kIn, kIn},
                              {apart.data(), DType::kF32, kOut, kIn, kStride},
                              {apart_bf16.data(), DType::kBF16, kOut, kIn, kStride}};
  for (const MatrixView& view : views) {
    SCOPED_TRACE(::testing::Message() << NameOf(view.dtype) << ", stride " << view.row_stride);
    std::vector<float> result(kOut);
    const auto packed = ops.Pack(view);
    ops.Linear({.in = View(input, 1, kIn), .weight = *packed, .out = View(result, 1, kOut)},
               nullptr);
    if (want.empty()) want = result;
    EXPECT_EQ(result, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinearTest,
                         ::testing::Values(LinearCase{DType::kF32, false, 0},
                                           LinearCase{DType::kF32, true, 0},
                                           LinearCase{DType::kBF16, false, 2.01 / 512},
                                           LinearCase{DType::kBF16, true, 2.01 / 512}));

struct BlocksCase {
  WeightFormat format;
  bool plain;
};

class BlocksTest : public ::testing::TestWithParam<BlocksCase> {
 protected:
  // Rows of `weight` rounded, except the last third.
  static std::vector<float> Rounded(std::vector<float> weight, int64_t out, int64_t in) {
    for (int64_t n = 0; n < Kept(out); ++n) {
      RoundRow(GetParam().format, weight.data() + n * in, in);
    }
    return weight;
  }
  static int64_t Kept(int64_t out) { return out - out / 3; }
  static CpuOps Ops(int threads) {
    return CpuOps({CpuHasBf16() ? DType::kBF16 : DType::kF32, GetParam().plain, threads});
  }
};

// Inputs are off by at most 2^-16 of the largest of their block, and sums of blocks are float32; of
// many rows, both factors are rounded to bf16, by 2^-8 at most.
TEST_P(BlocksTest, EqualTheDefinition) {
  CpuOps ops = Ops(2);
  for (const int64_t rows : {1, 4, 7, 63, 64, 65}) {
    for (auto [out, in] : {std::pair<int64_t, int64_t>{1, 1},
                           {31, 7},
                           {32, 64},
                           {64, 100},
                           {300, 257},
                           {65, 4160}}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << in << " to " << out);
      std::vector<float> weight = Random(out * in, 1), input = Random(rows * in, 2);
      for (size_t i = 0; i < input.size(); i += 50) input[i] *= 100;  // outliers
      std::vector<float> bias = Random(out, 3), result = Random(rows * out, 4);
      const std::vector<float> before = result, rounded = Rounded(weight, out, in);
      const auto packed = ops.PackRounded(View(weight, out, in), Kept(out), GetParam().format);
      ops.Linear({.in = View(input, rows, in),
                  .weight = *packed,
                  .bias = bias.data(),
                  .accumulate = true,
                  .out = View(result, rows, out)},
                 nullptr);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < out; ++n) {
          double want = At(before, r * out + n) + At(bias, n), inputs = 0, largest = 0;
          double magnitude = std::abs(At(before, r * out + n)) + std::abs(At(bias, n));
          for (int64_t k = 0; k < in; ++k) {
            if (k % 32 == 0) largest = 0;
            for (int64_t j = k; k % 32 == 0 && j < std::min(in, k + 32); ++j) {
              largest = std::max(largest, std::abs(At(input, r * in + j)));
            }
            const double term = At(input, r * in + k) * At(rounded, n * in + k);
            want += term;
            magnitude += std::abs(term);
            inputs += largest * std::abs(At(rounded, n * in + k));
          }
          const bool wide = !GetParam().plain && CpuHasBf16() && rows >= 64;
          const double rounding = static_cast<double>(in + 4) * std::exp2(-24);
          const double bound = magnitude * ((wide ? 2.01 / 256 : 0) + rounding) +
                               inputs * (std::exp2(-16) * 1.01 + rounding);
          ASSERT_NEAR(At(result, r * out + n), want, bound) << "row " << r << " output " << n;
        }
      }
    }
  }
}

TEST_P(BlocksTest, RowsDoNotDependOnThreadsNorFewRowsOnOthers) {
  constexpr int64_t kOut = 500, kIn = 96, kRows = 130;
  std::vector<float> weight = Random(kOut * kIn, 1), input = Random(kRows * kIn, 2), want;
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE(threads);
    CpuOps ops = Ops(threads);
    const auto packed = ops.PackRounded(View(weight, kOut, kIn), kOut, GetParam().format);
    const auto multiply = [&](int64_t first, int64_t rows) {
      std::vector<float> result(static_cast<size_t>(rows * kOut));
      ops.Linear({.in = View(input, kRows, kIn).Rows(first, rows),
                  .weight = *packed,
                  .out = View(result, rows, kOut)},
                 nullptr);
      return result;
    };
    const std::vector<float> all = multiply(0, kRows), few = multiply(0, 63);
    if (want.empty()) want = all;
    EXPECT_EQ(all, want);
    for (int64_t r = 0; r < 63; ++r) {
      EXPECT_TRUE(
          std::equal(few.begin() + r * kOut, few.begin() + (r + 1) * kOut, multiply(r, 1).begin()))
          << r;
    }
    if (!GetParam().plain) continue;
    EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << threads;
  }
}

TEST_P(BlocksTest, WhatIsNotFiniteStaysInItsRow) {
  CpuOps ops = Ops(1);
  std::vector<float> weight(64 * 33, 1), input(3 * 64, 0), result(3 * 33);
  input[64] = std::numeric_limits<float>::infinity();
  input[2 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
  const auto packed = ops.PackRounded(View(weight, 33, 64), 33, GetParam().format);
  ops.Linear({.in = View(input, 3, 64), .weight = *packed, .out = View(result, 3, 33)}, nullptr);
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_TRUE(i < 33 ? result[i] == 0 : std::isnan(result[i])) << i;
  }
}

TEST_P(BlocksTest, EmbedReadsThem) {
  CpuOps ops = Ops(1);
  constexpr int64_t kRows = 70, kWidth = 40;
  std::vector<float> table = Random(kRows * kWidth, 1), out(4 * kWidth), want;
  const auto packed = ops.PackRounded(View(table, kRows, kWidth), kRows, GetParam().format);
  EXPECT_LT(packed->bytes(), 96 * 64 * 34 / 32 + 1);  // of 96 rows of 64
  const std::vector<int32_t> ids = {1, 0, 99, 33};
  for (const int64_t id : {1, 0, 69, 33}) {
    std::vector<float> row(table.begin() + id * kWidth, table.begin() + (id + 1) * kWidth);
    RoundRow(GetParam().format, row.data(), kWidth);
    want.insert(want.end(), row.begin(), row.end());
  }
  BatchView batch;
  batch.num_rows = 4;
  batch.token_ids = ids.data();
  ops.Embed(batch, *packed, View(out, 4, kWidth), nullptr);
  EXPECT_EQ(out, want);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlocksTest,
                         ::testing::Values(BlocksCase{WeightFormat::kQ8, false},
                                           BlocksCase{WeightFormat::kQ8, true},
                                           BlocksCase{WeightFormat::kQ4, false},
                                           BlocksCase{WeightFormat::kQ4, true}));

TEST(CpuOpsTest, RowsOfE4M3AreRoundedAndMultipliedAsOthers) {
  CpuOps ops({DType::kF32, true, 1});
  constexpr int64_t kOut = 9, kIn = 50;
  std::vector<float> weight = Random(kOut * kIn, 1), rounded = weight, input = Random(kIn, 2);
  for (int64_t n = 0; n < 5; ++n) RoundRow(WeightFormat::kE4M3, rounded.data() + n * kIn, kIn);
  std::vector<float> got(kOut), want(kOut);
  const auto packed = ops.PackRounded(View(weight, kOut, kIn), 5, WeightFormat::kE4M3);
  const auto plain = ops.Pack(View(rounded, kOut, kIn));
  ops.Linear({.in = View(input, 1, kIn), .weight = *packed, .out = View(got, 1, kOut)}, nullptr);
  ops.Linear({.in = View(input, 1, kIn), .weight = *plain, .out = View(want, 1, kOut)}, nullptr);
  EXPECT_EQ(got, want);
}

// Prompts come in all lengths: primitives kept for them must not add up.
TEST(CpuOpsTest, MemoryIsBoundedWhateverTheNumberOfRows) {
  CpuOps ops({DType::kF32, false, 1});
  constexpr int64_t kRows = 900, kWidth = 64;
  std::vector<float> weight = Random(kWidth * kWidth, 1), in = Random(kRows * kWidth, 2), out = in;
  const auto packed = ops.Pack(View(weight, kWidth, kWidth));
  size_t warm = 0;
  for (int64_t rows = 1; rows <= kRows; ++rows) {
    ops.Linear({.in = View(in, rows, kWidth), .weight = *packed, .out = View(out, rows, kWidth)},
               nullptr);
    if (rows == kRows / 3) warm = mallinfo2().uordblks;
  }
  EXPECT_LT(mallinfo2().uordblks, warm + (4 << 20));  // 600 primitives would be 22 MB
}

TEST(CpuOpsTest, PlainRowsDoNotDependOnOtherRows) {
  CpuOps ops({DType::kF32, true, 2});
  std::vector<float> weight = Random(100 * 77, 1), input = Random(9 * 77, 2), all(900), one(100);
  const auto packed = ops.Pack(View(weight, 100, 77));
  ops.Linear({.in = View(input, 9, 77), .weight = *packed, .out = View(all, 9, 100)}, nullptr);
  for (int64_t r = 0; r < 9; ++r) {
    SCOPED_TRACE(::testing::Message() << "row " << r);
    const MatrixView row = View(input, 9, 77).Rows(r, 1);
    ops.Linear({.in = row, .weight = *packed, .out = View(one, 1, 100)}, nullptr);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + r * 100));
  }
}

// Norm and gate alone: with the identity for a weight.
std::vector<float> ThroughIdentity(CpuOps& ops, std::vector<float> in, int64_t rows,
                                   std::optional<RmsNorm> norm, std::optional<Activation> gate) {
  const int64_t cols = static_cast<int64_t>(in.size()) / rows, out_cols = gate ? cols / 2 : cols;
  std::vector<float> identity(static_cast<size_t>(cols * cols));
  for (int64_t i = 0; i < cols; ++i) identity[static_cast<size_t>(i * cols + i)] = 1;
  std::vector<float> out(static_cast<size_t>(rows * out_cols));
  const auto packed = ops.Pack(View(identity, cols, cols));
  ops.Linear({.in = View(in, rows, cols),
              .norm = norm,
              .weight = *packed,
              .gate = gate,
              .out = View(out, rows, out_cols)},
             nullptr);
  return out;
}

TEST(CpuOpsTest, NormsRows) {
  CpuOps ops({DType::kF32, true, 2});
  const std::vector<float> x = Random(3 * 40, 5), weight = Random(40, 6);
  const std::vector<float> y =
      ThroughIdentity(ops, x, 3, RmsNorm{weight.data(), 1e-6}, std::nullopt);
  for (int64_t r = 0; r < 3; ++r) {
    SCOPED_TRACE(::testing::Message() << "row " << r);
    double square = 0;
    for (int64_t i = 0; i < 40; ++i) square += std::pow(At(x, r * 40 + i), 2);
    for (int64_t i = 0; i < 40; ++i) {
      const double want = At(x, r * 40 + i) / std::sqrt(square / 40 + 1e-6) * At(weight, i);
      EXPECT_NEAR(At(y, r * 40 + i), want, 1e-5) << "column " << i;
    }
  }
}

TEST(CpuOpsTest, GatesHalves) {
  CpuOps ops({DType::kF32, true, 2});
  std::vector<float> gate_up = Random(3 * 74, 7);
  gate_up[0] = 1000;
  gate_up[1] = -1000;
  for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
    const std::vector<float> out = ThroughIdentity(ops, gate_up, 3, std::nullopt, act);
    for (int64_t r = 0; r < 3; ++r) {
      SCOPED_TRACE(::testing::Message() << "row " << r << ", activation " << static_cast<int>(act));
      for (int64_t i = 0; i < 37; ++i) {
        const double g = At(gate_up, r * 74 + i), sigmoid = 1 / (1 + std::exp(-g));
        const double want =
            (act == Activation::kSilu ? g : 1) * sigmoid * At(gate_up, r * 74 + 37 + i);
        EXPECT_NEAR(At(out, r * 37 + i), want, 1e-5 + 1e-6 * std::abs(want)) << "column " << i;
      }
    }
  }
}

// The memory budget counts this workspace before anything is allocated.
TEST(CpuOpsTest, ProductsTakeTheWorkspaceThatIsCounted) {
  class CountingOps : public CpuOps {
   public:
    using CpuOps::CpuOps;
    Buffer Allocate(size_t bytes) override {
      allocated += static_cast<int64_t>(bytes);
      return CpuOps::Allocate(bytes);
    }
    int64_t allocated = 0;
  };
  constexpr int64_t kRows = 20, kHidden = 16, kInner = 24;
  CountingOps ops({DType::kF32, true, 1});
  std::vector<float> weight = Random(2 * kInner * kHidden, 1), x = Random(kRows * kHidden, 2);
  std::vector<float> h(kRows * kInner);
  const auto packed = ops.Pack(View(weight, 2 * kInner, kHidden));
  for (int repeat = 0; repeat < 2; ++repeat) {
    ops.Linear({.in = View(x, kRows, kHidden),
                .norm = RmsNorm{weight.data(), 1e-6},
                .weight = *packed,
                .gate = Activation::kSilu,
                .out = View(h, kRows, kInner)},
               nullptr);
  }
  Workload load;
  load.hidden_size = kHidden;
  load.intermediate_size = kInner;
  load.max_rows = kRows;
  EXPECT_EQ(ops.allocated, ops.WorkspaceBytes(load));
}

TEST(CpuOpsTest, EmbedClampsIdsAndReadsAnyDtype) {
  CpuOps ops({});
  std::vector<uint16_t> table = {0x3f80, 0x4000, 0x4040, 0x4080};  // bf16 1, 2, 3, 4
  const std::vector<int32_t> ids = {1, 0, 99, -5};
  std::vector<float> out(8);
  BatchView batch;
  batch.num_rows = 4;
  batch.token_ids = ids.data();
  ops.Embed(batch, {table.data(), DType::kBF16, 2, 2, 2}, View(out, 4, 2), nullptr);
  EXPECT_EQ(out, (std::vector<float>{3, 4, 1, 2, 3, 4, 1, 2}));
}

// The undefined-behaviour sanitizer would say so: an empty buffer has no address.
TEST(CpuOpsTest, NothingMayBeCopied) {
  CpuOps ops({DType::kF32, true, 1});
  const Buffer buffer = ops.Allocate(0);
  std::vector<int> empty;
  ops.CopyToDevice(empty.data(), 0, buffer.data(), nullptr);
  ops.CopyToHost(buffer.data(), 0, empty.data(), nullptr);
  EXPECT_EQ(buffer.data(), nullptr);
}

// Buffers are mappings, whose bounds the address sanitizer does not know by itself.
TEST(CpuOpsDeathTest, TheAddressSanitizerSeesTheEndOfABuffer) {
#ifndef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "no address sanitizer";
#endif
  CpuOps ops({DType::kF32, true, 1});
  const Buffer buffer = ops.Allocate(13);
  auto* const bytes = static_cast<volatile char*>(buffer.data());
  bytes[12] = 1;
  EXPECT_DEATH(bytes[13] = 1, "use-after-poison");
}

}  // namespace
}  // namespace fox
