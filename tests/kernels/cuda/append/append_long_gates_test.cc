// Cumulative gates of a million tokens, in chunks and then one by one, against float64: |log f|
// from 1e-7 to 50 and every distance between tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/append/append.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_heads.h"

namespace fox::cuda::testing {
namespace {

constexpr int kHeadDim = 16, kStride = 3 * kHeadDim + 8;
constexpr int64_t kChunk = 16384, kTokens = (int64_t{1} << 20) + 200;
// A gate is float32: exp and log1p by a few units in the last place of 2^-23 each.
constexpr double kGateError = 0x1p-21;

TEST(LongGatesTest, AMillionTokens) {
  const DeviceKv kv({.layers = 1,
                     .q_heads = 1,
                     .kv_heads = 1,
                     .head_dim = kHeadDim,
                     .dtype = DType::kBF16,
                     .num_pages = PagesFor(kTokens),
                     .max_slots = 1,
                     .max_pages = PagesFor(kTokens)});
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<double> log_size(std::log(1e-7), std::log(50));
  std::vector<double> c;
  for (int64_t done = 0; done < kTokens;) {
    SCOPED_TRACE(::testing::Message() << "after " << done << " tokens");
    const int64_t rows = done + kChunk <= kTokens ? kChunk : 1;
    const DeviceBatch batch({{0, done, rows}});
    const DeviceWork schedule(kv.view.shape, rows, 1);
    std::vector<uint16_t> projection(static_cast<size_t>(rows * kStride), 0);
    for (int64_t r = 0; r < rows; ++r) {
      const BFloat16 logit(static_cast<float>(GateLogit(-std::exp(log_size(rng)))));
      projection[static_cast<size_t>(r * kStride + 3 * kHeadDim)] = logit.bits;
      c.push_back((c.empty() ? 0 : c.back()) +
                  LogForgetGate(static_cast<double>(static_cast<float>(logit)), -128));
    }
    const DeviceArray<uint16_t> on_device(projection);
    AppendParams params;
    params.projection = {on_device.data(), DType::kBF16, rows, kStride, kStride};
    params.k_column = kHeadDim;
    params.v_column = 2 * kHeadDim;
    params.fgate_column = 3 * kHeadDim;
    ASSERT_EQ(BeginStep(batch.view, kv.view, schedule.view, nullptr), cudaSuccess);
    ASSERT_EQ(Append(batch.view, params, kv.view, schedule.view, {}, nullptr), cudaSuccess);
    done += rows;
  }

  const std::vector<double> bases = kv.page_cum_log_f.ToHost();
  const std::vector<float> offsets = kv.log_f_offset.ToHost();
  const std::vector<int32_t> table = kv.page_table.ToHost();
  const auto page = [&](int64_t i) {
    return static_cast<size_t>(table[static_cast<size_t>(i / kPageTokens)]);
  };
  const auto offset = [&](int64_t i) {
    return static_cast<double>(
        offsets[page(i) * kPageTokens + static_cast<size_t>(i % kPageTokens)]);
  };
  rng.seed(2);
  for (int64_t j = 0; j < kTokens; ++j) {
    const double c_j = c[static_cast<size_t>(j)];
    for (const int64_t i : {int64_t{0}, std::max<int64_t>(0, j - 1),
                            static_cast<int64_t>(rng() % static_cast<uint64_t>(j + 1))}) {
      // c_j - c_i as attention forms it, and how far off it may be.
      const double expected = c_j - c[static_cast<size_t>(i)];
      const double got = (bases[page(j)] - bases[page(i)]) + (offset(j) - offset(i));
      const double rounded = 0x1p-24 * (std::abs(offset(i)) + std::abs(offset(j)));
      // Each side rounds c once a token at most, and a few times in the pages of the two.
      const double sums =
          static_cast<double>(2 * (j - i) + 2 * kPageTokens) * 0x1p-53 * std::abs(c_j);
      ASSERT_LE(std::abs(got - expected), kGateError * std::abs(expected) + rounded + sums)
          << "tokens " << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace fox::cuda::testing
