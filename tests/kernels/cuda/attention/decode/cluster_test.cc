// Decode attention's two kernels give the same bits: the one of small batches and the one of all
// others, alone, in a batch, and beside sequences of several rows. That they are right is
// decode_test's.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/decode/decode.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda {
namespace {

using testing::CacheOptions;
using testing::CacheSequence;
using testing::DeviceArray;
using testing::DeviceCache;
using testing::Plan;

// Of all rows: a row of `out` is its bf16 and then, as two words each, the bits of its lse.
struct Outputs {
  int64_t columns = 0;
  std::vector<uint16_t> words;

  std::vector<uint16_t> Row(int64_t row) const {
    const auto begin = words.begin() + row * columns;
    return {begin, begin + columns};
  }
};

Outputs Read(const DeviceCache& cache) {
  const AttentionParams& params = cache.params();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Outputs outputs;
  outputs.columns = params.out.cols + 2 * params.lse.cols;
  outputs.words.resize(static_cast<size_t>(outputs.columns * params.out.rows));
  const auto copy = [&](int64_t column, const MatrixView& from, size_t size) {
    EXPECT_EQ(cudaMemcpy2D(outputs.words.data() + column, static_cast<size_t>(outputs.columns) * 2,
                           from.data, static_cast<size_t>(from.row_stride) * size,
                           static_cast<size_t>(from.cols) * size, static_cast<size_t>(from.rows),
                           cudaMemcpyDeviceToHost),
              cudaSuccess);
  };
  copy(0, params.out, sizeof(uint16_t));
  copy(params.out.cols, params.lse, sizeof(float));
  return outputs;
}

// Sequences [first, first + count) of the cache's batch, of one row each. REQUIRES: rows and
// sequences are in the same order.
BatchView Part(const DeviceCache& cache, int first, int count) {
  BatchView batch = cache.batch();
  batch.num_seqs = count;
  batch.num_rows = count;
  batch.slot += first;
  batch.row_begin += first;
  batch.position += first;
  batch.log_tolerance += first;
  return batch;
}

// By the kernel of any batch, of which `batch` is the beginning.
Outputs AttendInSplits(DeviceCache& cache, const BatchView& batch) {
  cache.ResetOutputs();
  EXPECT_EQ(Plan(batch, cache.kv(), cache.schedule(), cache.options().layer), cudaSuccess);
  EXPECT_EQ(DecodeAttention(batch, cache.params(), cache.kv(), cache.schedule(),
                            batch.num_rows == batch.num_seqs, nullptr),
            cudaSuccess);
  return Read(cache);
}

// By the kernel of small batches: there are no splits, so the other one would write nothing. It is
// sent more sequences than a small batch has, which it does not know.
Outputs AttendInClusters(DeviceCache& cache, BatchView batch) {
  batch.small = true;
  AttentionParams params = cache.params();
  params.blocks_total = params.blocks_pruned = nullptr;
  StepSchedule schedule = cache.schedule();
  schedule.decode_blocks = 0;
  cache.ResetOutputs();
  EXPECT_EQ(DecodeAttention(batch, params, cache.kv(), schedule, true, nullptr), cudaSuccess);
  return Read(cache);
}

// All sequences have one row: together in either kernel, and each of them alone.
void ExpectSameBits(const CacheOptions& options) {
  DeviceCache cache(options);
  if (!DecodeClusterRuns(cache.kv().shape)) GTEST_SKIP() << "no clusters";
  const int count = cache.batch().num_seqs;
  const Outputs split = AttendInSplits(cache, cache.batch());
  const Outputs cluster = AttendInClusters(cache, cache.batch());
  for (int s = 0; s < count; ++s) {
    EXPECT_EQ(cluster.Row(s), split.Row(s)) << "sequence " << s;
  }
  for (int s = 0; s < count; s += std::max(1, count / 8)) {
    const Outputs alone = AttendInClusters(cache, Part(cache, s, 1));
    EXPECT_EQ(alone.Row(s), split.Row(s)) << "sequence " << s << " alone";
  }
}

std::vector<CacheSequence> OneRowEach(const std::vector<int64_t>& lengths) {
  std::vector<CacheSequence> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    CacheSequence sequence;
    sequence.length = lengths[i];
    sequence.slot = static_cast<int>((i + 3) % lengths.size());
    sequences.push_back(sequence);
  }
  return sequences;
}

class DecodeClusterShapesTest : public ::testing::TestWithParam<int> {};

// Around half pages, pages, splits, and turns of the cluster.
const std::vector<int64_t> kLengths = {1,    31,   33,   64,   65,   129,  255,  256,  257,
                                       513,  700,  1025, 1087, 2048, 2049, 3000, 4096, 4097,
                                       4160, 4161, 4353, 6000, 8128, 8191, 8192};

TEST_P(DecodeClusterShapesTest, WholeWindows) {
  CacheOptions options;
  options.head_dim = GetParam();
  options.acp = AcpMode::kOff;
  options.sequences = OneRowEach(kLengths);
  ExpectSameBits(options);
}

TEST_P(DecodeClusterShapesTest, PrunedWindows) {
  CacheOptions options;
  options.head_dim = GetParam();
  options.q_heads = options.kv_heads = 5;
  options.gate_means = {-1, 1, 3, 5, 9};
  options.output_norm = options.output_gate = true;
  options.sequences = OneRowEach(kLengths);
  ExpectSameBits(options);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, DecodeClusterShapesTest, ::testing::Values(32, 64, 128),
                         [](const auto& head_dim) { return std::to_string(head_dim.param); });

// Heads of 32 are the ones that are not taken together.
TEST(DecodeClusterTest, GroupsOfQueryHeads) {
  CacheOptions options;
  options.head_dim = 32;
  options.q_heads = 6;
  options.kv_heads = 2;
  options.gate_means = {0, 2, 4, 6, 3, 1};
  options.output_gate = true;
  options.gate_act = Activation::kSilu;
  options.sequences = OneRowEach({1500, 70, 900, 4500});
  ExpectSameBits(options);
}

TEST(DecodeClusterTest, WindowsOfAllPageCounts) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 1;
  options.acp = AcpMode::kOff;
  options.output_norm = options.output_gate = true;
  std::vector<int64_t> lengths;
  std::mt19937 random(5);
  for (int64_t pages = 1; pages <= kSmallBatchTokens / kPageTokens; ++pages) {
    lengths.push_back(pages * kPageTokens - std::uniform_int_distribution<int>(0, 63)(random));
  }
  options.sequences = OneRowEach(lengths);
  ExpectSameBits(options);
}

// A small batch with padding, the same rows beside a longer sequence, and beside prompts.
TEST(DecodeClusterTest, BesideOtherSequences) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 3;
  options.gate_means = {1, 3, 9};
  options.output_norm = options.output_gate = true;
  options.sequences = {{4500, 1, -10, 2},  {1, 1, -10, -1},   {8192, 1, -10, 0},  {300, 1, -10, 5},
                       {20000, 1, -10, 1}, {700, 40, -10, 4}, {1200, 200, -10, 3}};
  DeviceCache cache(options);
  if (!DecodeClusterRuns(cache.kv().shape)) GTEST_SKIP() << "no clusters";
  constexpr int kSmall = 4, kOneRow = 5;
  ASSERT_GT(cache.first_live(0, 0), 0);
  const Outputs small = AttendInClusters(cache, Part(cache, 0, kSmall));
  const Outputs longer = AttendInSplits(cache, Part(cache, 0, kOneRow));
  const Outputs mixed = AttendInSplits(cache, cache.batch());
  for (int s : {0, 2, 3}) {
    const Outputs alone = AttendInClusters(cache, Part(cache, s, 1));
    EXPECT_EQ(small.Row(s), alone.Row(s)) << "sequence " << s;
    EXPECT_EQ(longer.Row(s), alone.Row(s)) << "sequence " << s;
    EXPECT_EQ(mixed.Row(s), alone.Row(s)) << "sequence " << s;
  }
  EXPECT_EQ(mixed.Row(kSmall), longer.Row(kSmall));
}

}  // namespace
}  // namespace fox::cuda
