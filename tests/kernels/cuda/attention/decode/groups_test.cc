// Decode attention of query heads that share a kv head: against float64 for groups of all kinds,
// under windows of the kv head and of the rows' own; and a row's bits in any batch.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/prune_boundary.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda {
namespace {

using testing::CacheOptions;
using testing::DeviceArray;
using testing::DeviceCache;
using testing::Plan;
using testing::RowKind;

cudaError_t Attend(const DeviceCache& cache, const BatchView& batch, const StepSchedule& schedule,
                   bool reads_early) {
  const cudaError_t planned = Plan(batch, cache.kv(), schedule, cache.options().layer);
  if (planned != cudaSuccess) return planned;
  return DecodeAttention(batch, cache.params(), cache.kv(), schedule, reads_early, nullptr);
}

void ExpectExact(DeviceCache& cache) {
  cache.CheckOutputs(RowKind::kDecode);
  for (int32_t arrival_counter : cache.arrival_counter_array().ToHost()) {
    ASSERT_EQ(arrival_counter, 0);
  }
}

// Head dim, kv heads, and query heads of each.
class DecodeGroupsTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  static CacheOptions Options() {
    const auto [head_dim, kv_heads, group] = GetParam();
    CacheOptions options;
    options.head_dim = head_dim;
    options.q_heads = kv_heads * group;
    options.kv_heads = kv_heads;
    options.gate_means = {1, 3, 6, 2, 9};
    options.sequences = {{1500, 1, -10, 3}, {70, 1, -10, 4},   {900, 30, -10, 0},
                         {1, 1, -10, -1},   {1, 1, -10, 1},    {640, 1, -3, 5},
                         {33, 1, -10, 2},   {2500, 1, -10, 6}, {1025, 1, -20, 7}};
    return options;
  }
};

// Twice, as two layers would: the second run depends on the first one's arrival_counters.
TEST_P(DecodeGroupsTest, MatchesFloat64) {
  for (AcpMode acp : {AcpMode::kOff, AcpMode::kCertified}) {
    CacheOptions options = Options();
    options.acp = acp;
    options.output_norm = options.output_gate = acp == AcpMode::kCertified;
    DeviceCache cache(options);
    for (int run = 0; run < 2; ++run) {
      cache.ResetOutputs();
      ASSERT_EQ(Attend(cache, cache.batch(), cache.schedule(), false), cudaSuccess);
      ExpectExact(cache);
    }
  }
}

// Each head sees its own part of the pages that are read for all.
TEST_P(DecodeGroupsTest, WindowsWithoutQkNorm) {
  CacheOptions options = Options();
  options.acp = AcpMode::kPaper;
  options.qk_norm = false;
  options.output_gate = true;
  options.gate_act = Activation::kSilu;
  DeviceCache cache(options);
  const DeviceArray<int32_t> window(static_cast<size_t>(cache.schedule().max_seq_heads));
  StepSchedule schedule = cache.schedule();
  schedule.first_visible_page = window.data();
  cache.ResetOutputs();
  ASSERT_EQ(FindFirstVisiblePages(cache.batch(), cache.params(), cache.kv(), schedule, nullptr),
            cudaSuccess);
  ASSERT_EQ(Attend(cache, cache.batch(), schedule, false), cudaSuccess);
  ExpectExact(cache);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeGroupsTest,
                         ::testing::Combine(::testing::Values(64, 128), ::testing::Values(2),
                                            ::testing::Values(2, 4, 9, 16)),
                         [](const auto& shape) {
                           return std::to_string(std::get<0>(shape.param)) + "x" +
                                  std::to_string(std::get<2>(shape.param));
                         });

// Of the first `count` sequences, which have one row each.
std::vector<uint16_t> Rows(DeviceCache& cache, int count, bool small) {
  BatchView batch = cache.batch();
  if (count < batch.num_seqs) batch.num_seqs = static_cast<int>(batch.num_rows = count);
  batch.small = small;
  cache.ResetOutputs();
  EXPECT_EQ(Attend(cache, batch, cache.schedule(), batch.num_rows == batch.num_seqs), cudaSuccess);
  return cache.out_array().ToHost();
}

TEST(DecodeGroupsBatchTest, RowsDoNotDependOnTheBatch) {
  for (const int head_dim : {64, 128}) {
    CacheOptions options;
    options.head_dim = head_dim;
    options.q_heads = 12;
    options.kv_heads = 3;
    options.gate_means = {2, 9, 4};
    options.output_norm = options.output_gate = true;
    options.sequences = {{6000, 1, -10, 2}, {700, 1, -10, 5}, {1, 1, -10, -1}, {257, 1, -10, 1}};
    for (int s = 0; s < 30; ++s) options.sequences.push_back({100 + 97 * s, 1, -10, 8 + s});
    options.sequences.push_back({700, 40, -10, 4});
    options.sequences.push_back({1200, 200, -10, 3});
    DeviceCache cache(options);
    const int all = cache.batch().num_seqs;
    const std::vector<uint16_t> mixed = Rows(cache, all, false);
    for (const int count : {1, 2, 4, 20, all - 2}) {
      const std::vector<uint16_t> rows = Rows(cache, count, count <= kSmallBatchRows);
      const int64_t words = count * cache.params().out.row_stride;
      EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + words, mixed.begin())) << count;
    }
  }
}

}  // namespace
}  // namespace fox::cuda
