// Cumulative gates of a million tokens, in chunks and then one by one, against float64: |log f|
// from 1e-7 to 50 and every distance between tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/acp.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/paging/paging.h"
#include "tests/kernels/cuda/device_heads.h"

namespace fox::cuda::testing {
namespace {

constexpr int kHeadDim = 16, kStride = 3 * kHeadDim + 8;
constexpr int64_t kChunk = 16384, kTokens = (int64_t{1} << 20) + 200;
// A gate is float32: exp and log1p by a few units in the last place of 2^-23 each.
constexpr double kGateError = 0x1p-21;

class LongGates {
 public:
  LongGates()
      : kv_({.layers = 1,
             .q_heads = 1,
             .kv_heads = 1,
             .head_dim = kHeadDim,
             .dtype = DType::kBF16,
             .num_pages = PagesFor(kTokens),
             .max_slots = 1,
             .max_pages = PagesFor(kTokens)}) {
    std::mt19937_64 rng(1);
    std::uniform_real_distribution<double> log_size(std::log(1e-7), std::log(50));
    double sum = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      const BFloat16 logit(static_cast<float>(GateLogit(-std::exp(log_size(rng)))));
      logits_.push_back(logit.bits);
      c_.push_back(sum += LogForgetGate(static_cast<double>(static_cast<float>(logit)), -128));
    }
  }

  void Append(int64_t rows) {
    const DeviceBatch batch({{0, length_, rows}});
    const DeviceWork schedule(kv_.view.shape, rows, 1);
    std::vector<uint16_t> projection(static_cast<size_t>(rows * kStride), 0);
    for (int64_t r = 0; r < rows; ++r) {
      projection[static_cast<size_t>(r * kStride + 3 * kHeadDim)] =
          logits_[static_cast<size_t>(length_ + r)];
    }
    const DeviceArray<uint16_t> on_device(projection);
    AppendParams params;
    params.projection = {on_device.data(), DType::kBF16, rows, kStride, kStride};
    params.k_column = kHeadDim;
    params.v_column = 2 * kHeadDim;
    params.fgate_column = 3 * kHeadDim;
    ASSERT_EQ(BeginStep(batch.view, kv_.view, schedule.view, nullptr), cudaSuccess);
    ASSERT_EQ(cuda::Append(batch.view, params, kv_.view, schedule.view, false, nullptr),
              cudaSuccess);
    length_ += rows;
  }

  void Download() {
    base_ = kv_.page_cum_log_f.ToHost();
    offset_ = kv_.log_f_offset.ToHost();
    table_ = kv_.page_table.ToHost();
  }
  int64_t length() const { return length_; }

  // c_j - c_i as attention forms it, and how far off it may be.
  void ExpectDistance(int64_t i, int64_t j) const {
    const double expected = C(j) - C(i);
    const double got = (Base(j) - Base(i)) + (Offset(j) - Offset(i));
    const double offsets = 0x1p-24 * (std::abs(Offset(i)) + std::abs(Offset(j)));
    // Each side rounds c once a token at most, and a few times in the pages of the two.
    const double sums =
        static_cast<double>(2 * (j - i) + 2 * kPageTokens) * 0x1p-53 * std::abs(C(j));
    ASSERT_LE(std::abs(got - expected), kGateError * std::abs(expected) + offsets + sums)
        << "tokens " << i << " and " << j;
  }

 private:
  size_t Page(int64_t i) const {
    return static_cast<size_t>(table_[static_cast<size_t>(i / kPageTokens)]);
  }
  double Base(int64_t i) const { return base_[Page(i)]; }
  double Offset(int64_t i) const {
    return static_cast<double>(
        offset_[Page(i) * kPageTokens + static_cast<size_t>(i % kPageTokens)]);
  }
  double C(int64_t i) const { return c_[static_cast<size_t>(i)]; }

  DeviceKv kv_;
  std::vector<uint16_t> logits_;
  std::vector<double> c_;
  int64_t length_ = 0;
  std::vector<double> base_;
  std::vector<float> offset_;
  std::vector<int32_t> table_;
};

TEST(LongGatesTest, AMillionTokens) {
  LongGates gates;
  while (gates.length() + kChunk <= kTokens) gates.Append(kChunk);
  while (gates.length() < kTokens) gates.Append(1);
  gates.Download();
  std::mt19937_64 rng(2);
  for (int64_t i = 0; i < kTokens; ++i) {
    gates.ExpectDistance(0, i);
    gates.ExpectDistance(std::max<int64_t>(0, i - 1), i);
    gates.ExpectDistance(static_cast<int64_t>(rng() % static_cast<uint64_t>(i + 1)), i);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace fox::cuda::testing
