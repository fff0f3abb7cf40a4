// DecodeAttention against float64 on ragged, pruned and mixed batches, and what makes it fit for
// serving: a row gives the same bits in any batch, and arrival_counters are left as they were
// found. The disabled test measures; run it with --gtest_also_run_disabled_tests.
#include "kernels/cuda/attention/decode/decode.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/prune_boundary.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda {
namespace {

using testing::CacheOptions;
using testing::CacheSequence;
using testing::DeviceArray;
using testing::DeviceCache;
using testing::Plan;
using testing::RowKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As after Append, where the batch may follow AppendDecode: nothing else writes meanwhile.
cudaError_t Attend(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                   const StepSchedule& schedule) {
  const bool reads_early =
      batch.num_rows == batch.num_seqs && schedule.first_visible_page == nullptr;
  const cudaError_t planned = Plan(batch, kv, schedule, params.layer);
  if (planned != cudaSuccess) return planned;
  return DecodeAttention(batch, params, kv, schedule, reads_early, nullptr);
}

cudaError_t Attend(const DeviceCache& cache, bool small = false) {
  BatchView batch = cache.batch();
  batch.small = small;
  return Attend(batch, cache.params(), cache.kv(), cache.schedule());
}

// Whether the kernel of small batches can take it, be there more sequences than in a small batch.
bool IsShort(const DeviceCache& cache) {
  const std::vector<CacheSequence>& sequences = cache.options().sequences;
  return std::all_of(sequences.begin(), sequences.end(), [](const CacheSequence& sequence) {
    return sequence.rows == 1 && sequence.length <= kSmallBatchTokens;
  });
}

// Twice, as two layers of one step would: the second run depends on the first one's
// arrival_counters. And by the kernel of small batches.
void ExpectExact(DeviceCache& cache) {
  for (int run = 0; run < (IsShort(cache) ? 4 : 2); ++run) {
    cache.ResetOutputs();
    ASSERT_EQ(Attend(cache, run >= 2), cudaSuccess);
    cache.CheckOutputs(RowKind::kDecode);
    for (int32_t arrival_counter : cache.arrival_counter_array().ToHost())
      ASSERT_EQ(arrival_counter, 0);
  }
}

// The same after planning by the rows' own queries, as CudaOps does without QK-norm.
void ExpectExactWindows(DeviceCache& cache) {
  ASSERT_TRUE(UsesPerQueryBound(cache.params()));
  const DeviceArray<int32_t> window(static_cast<size_t>(cache.schedule().max_seq_heads));
  StepSchedule schedule = cache.schedule();
  schedule.first_visible_page = window.data();
  for (int run = 0; run < 2; ++run) {
    cache.ResetOutputs();
    ASSERT_EQ(FindFirstVisiblePages(cache.batch(), cache.params(), cache.kv(), schedule, nullptr),
              cudaSuccess);
    ASSERT_EQ(Attend(cache.batch(), cache.params(), cache.kv(), schedule), cudaSuccess);
    cache.CheckOutputs(RowKind::kDecode);
    for (int32_t arrival_counter : cache.arrival_counter_array().ToHost())
      ASSERT_EQ(arrival_counter, 0);
  }
}

// One row each, in slots that are not in the batch's order.
std::vector<CacheSequence> OneRowEach(const std::vector<int64_t>& lengths) {
  std::vector<CacheSequence> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    CacheSequence sequence;
    sequence.length = lengths[i];
    sequence.slot = static_cast<int>(lengths.size() - i);
    sequences.push_back(sequence);
  }
  return sequences;
}

class DecodeShapesTest : public ::testing::TestWithParam<int> {};

// Lengths around half pages, pages and splits.
TEST_P(DecodeShapesTest, UnprunedLengths) {
  CacheOptions options;
  options.head_dim = GetParam();
  options.acp = AcpMode::kOff;
  options.sequences = OneRowEach(
      {1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 255, 256, 257, 320, 513, 2000});
  DeviceCache cache(options);
  ExpectExact(cache);
}

TEST_P(DecodeShapesTest, PrunedWindowsOfAllWidths) {
  CacheOptions options;
  options.head_dim = GetParam();
  options.q_heads = options.kv_heads = 5;
  options.gate_means = {-1, 1, 3, 5, 9};
  options.output_norm = options.output_gate = true;
  options.sequences = OneRowEach({640, 1, 700, 1087, 1088, 1089, 4000});
  DeviceCache cache(options);
  ExpectExact(cache);
}

TEST_P(DecodeShapesTest, GroupsOfQueryHeads) {
  CacheOptions options;
  options.head_dim = GetParam();
  options.q_heads = 6;
  options.kv_heads = 2;
  options.gate_means = {0, 2, 4, 6, 3, 1};
  options.output_gate = true;
  options.gate_act = Activation::kSilu;
  options.sequences = OneRowEach({1500, 70, 900});
  DeviceCache cache(options);
  ExpectExact(cache);
}

// Windows within groups differ from head to head; sequences of several rows lie between.
TEST_P(DecodeShapesTest, WindowsWithoutQkNorm) {
  CacheOptions options;
  options.acp = AcpMode::kPaper;
  options.qk_norm = false;
  options.head_dim = GetParam();
  options.q_heads = 6;
  options.kv_heads = 2;
  options.gate_means = {0, 2, 1, 9, 0.5, 3};
  options.output_norm = true;
  options.sequences = {{1500, 1, -10, 3},       {70, 1, -10, 4},   {900, 30, -10, 0},
                       {1, 1, -10, -1},         {1, 1, -10, 1},    {640, 1, -3, 5},
                       {800, 1, -kInfinity, 2}, {4000, 1, -10, 6}, {1025, 1, -20, 7}};
  DeviceCache cache(options);
  const std::vector<int32_t> windows = cache.Windows(0);
  ASSERT_GT(*std::max_element(windows.begin(), windows.end()), 0);
  ExpectExactWindows(cache);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, DecodeShapesTest, ::testing::Values(16, 32, 64, 128),
                         [](const auto& head_dim) { return std::to_string(head_dim.param); });

TEST(DecodeAttentionTest, OneHeadOneSequence) {
  for (int64_t length : {1, 64, 300, 20000}) {
    CacheOptions options;
    options.q_heads = options.kv_heads = 1;
    options.layers = 1;
    options.layer = 0;
    options.gate_means = {8};
    options.sequences = OneRowEach({length});
    DeviceCache cache(options);
    ExpectExact(cache);
  }
}

// Padding and sequences of several rows own no splits and are left alone.
TEST(DecodeAttentionTest, MixedBatch) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 3;
  options.gate_means = {1, 3, 6};
  options.output_norm = options.output_gate = true;
  options.sequences = {{500, 1, -10, -1}, {300, 40, -10, 4},  {900, 1, -10, 0},
                       {1, 1, -10, -1},   {200, 200, -10, 2}, {129, 1, -10, 3},
                       {64, 2, -10, 1},   {65, 1, -10, 5},    {77, 1, -10, -1}};
  DeviceCache cache(options);
  ExpectExact(cache);
}

TEST(DecodeAttentionTest, PaddedBatch) {
  CacheOptions options;
  options.gate_means = {1, 8};
  options.sequences = {{1, 1, -10, -1}, {3000, 1, -10, 0}, {77, 1, -10, -1}, {65, 1, -10, 1}};
  DeviceCache cache(options);
  ExpectExact(cache);
}

// Between two sequences with splits lie more pairs than a warp looks at in one step.
TEST(DecodeAttentionTest, ManyPairsWithoutItems) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 7;
  options.head_dim = 32;
  options.sequences = OneRowEach({200});
  for (int i = 0; i < 30; ++i) options.sequences.push_back({2, 2, -10, 2 + i});
  options.sequences.push_back({300, 1, -10, 40});
  options.sequences.push_back({1, 1, -10, -1});
  DeviceCache cache(options);
  ExpectExact(cache);
}

TEST(DecodeAttentionTest, NoItemsAtAll) {
  CacheOptions options;
  options.sequences = {{100, 3, -10, 0}, {1, 1, -10, -1}};
  DeviceCache cache(options);
  ExpectExact(cache);
  BatchView empty = cache.batch();
  empty.num_seqs = 0;
  EXPECT_EQ(Attend(empty, cache.params(), cache.kv(), cache.schedule()), cudaSuccess);
}

// More pairs than threads, more splits than blocks.
TEST(DecodeAttentionTest, LargeBatch) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 12;
  options.gate_means = {9, 2, 2, 3};
  std::vector<int64_t> lengths(48);
  std::mt19937 random(7);
  for (int64_t& length : lengths) length = std::uniform_int_distribution<int>(1, 2500)(random);
  options.sequences = OneRowEach(lengths);
  DeviceCache cache(options);
  ASSERT_GT(cache.num_splits(), 1000);
  ExpectExact(cache);
}

// Windows of more than 512 pages are cut into larger splits, each (sequence, head) by itself: the
// first head keeps a short window, the other one nearly all pages.
TEST(DecodeAttentionTest, LongWindowsTakeLargerItems) {
  CacheOptions options;
  options.head_dim = 32;
  options.layers = 1;
  options.layer = 0;
  options.gate_means = {2, 16};
  options.sequences = OneRowEach({65536, 500, 65537, 270001});
  DeviceCache cache(options);
  const auto pages_of = [&](int s, int head) {
    return PagesFor(options.sequences[static_cast<size_t>(s)].length) - cache.first_live(s, head);
  };
  EXPECT_EQ(SplitShift(pages_of(3, 0)), kMinSplitShift);
  EXPECT_EQ(SplitShift(pages_of(3, 1)), kMinSplitShift + 2);
  ExpectExact(cache);
}

// Gates so strong that float32 alone would lose the decay, or leave nothing but the last key.
TEST(DecodeAttentionTest, StrongGates) {
  CacheOptions options;
  options.gate_means = {3, 8};
  options.strong_gate_rate = 0.02;
  options.evict = false;
  options.sequences = OneRowEach({3000, 1000, 64, 65});
  for (AcpMode acp : {AcpMode::kOff, AcpMode::kPaper}) {
    options.acp = acp;
    DeviceCache cache(options);
    ExpectExact(cache);
  }
}

TEST(DecodeAttentionTest, OptionalOutputs) {
  CacheOptions options;
  options.sequences = OneRowEach({400, 90});
  DeviceCache cache(options);
  ASSERT_EQ(Attend(cache), cudaSuccess);
  const std::vector<uint16_t> all = cache.out_array().ToHost();
  cache.ResetOutputs();
  AttentionParams params = cache.params();
  params.lse = {};
  params.blocks_total = params.blocks_pruned = nullptr;
  ASSERT_EQ(Attend(cache.batch(), params, cache.kv(), cache.schedule()), cudaSuccess);
  EXPECT_EQ(cache.out_array().ToHost(), all);
}

// The batch of `cache` without its sequences before `first`: the same slots, pages and rows, but
// other splits on other blocks.
std::vector<uint16_t> RunTail(DeviceCache& cache, int first) {
  BatchView batch = cache.batch();
  batch.num_seqs -= first;
  batch.slot += first;
  batch.row_begin += first;
  batch.position += first;
  AttentionParams params = cache.params();
  params.blocks_total = params.blocks_pruned = nullptr;
  cache.ResetOutputs();
  EXPECT_EQ(Attend(batch, params, cache.kv(), cache.schedule()), cudaSuccess);
  return cache.out_array().ToHost();
}

TEST(DecodeAttentionTest, RowsDoNotDependOnTheBatch) {
  CacheOptions options;
  options.q_heads = options.kv_heads = 8;
  options.gate_means = {2, 4, 9};
  std::vector<int64_t> lengths(40);
  std::mt19937 random(3);
  for (int64_t& length : lengths) length = std::uniform_int_distribution<int>(1, 3000)(random);
  options.sequences = OneRowEach(lengths);
  DeviceCache cache(options);
  const std::vector<uint16_t> all = RunTail(cache, 0);
  const auto stride = static_cast<size_t>(cache.params().out.row_stride);
  for (int first : {0, 1, 17, 38, 39}) {
    const std::vector<uint16_t> tail = RunTail(cache, first);
    const size_t begin = static_cast<size_t>(first) * stride, end = lengths.size() * stride;
    for (size_t i = begin; i < end; ++i) {
      ASSERT_EQ(tail[i], all[i]) << "first " << first << " row " << i / stride;
    }
  }
}

// ---- Measurement: windows of given widths, not a cache that could have come about.

struct Windows {
  int batch = 1;
  int length = 4096;
  int global_every = 1;  // every n-th head sees all pages
  int other_pages = 0;   // of the other heads
  int group = 1;         // query heads of a kv head
};

template <typename T>
DeviceArray<T> RandomWords(size_t count, T keep, T set) {
  std::mt19937_64 random(1);
  std::vector<T> part(std::min<size_t>(count, 1 << 24));
  for (T& x : part) x = static_cast<T>((static_cast<T>(random()) & keep) | set);
  DeviceArray<T> array(count);
  for (size_t at = 0; at < count; at += part.size()) {
    const size_t n = std::min(part.size(), count - at);
    EXPECT_EQ(cudaMemcpy(array.data() + at, part.data(), n * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  return array;
}

constexpr int kHeads = 24, kHeadDim = 64;

// Which pages are live, and the lists that say so.
struct WindowLists {
  int num_pages = 0;
  std::vector<int32_t> first, table, begin = {0}, slot;
  std::vector<int64_t> row_begin = {0}, position;
};

WindowLists ListsOf(const Windows& windows) {
  const int pages = PagesFor(windows.length);
  WindowLists lists;
  for (int s = 0; s < windows.batch; ++s) {
    for (int h = 0; h < kHeads / windows.group; ++h) {
      const int first = h % windows.global_every == 0 ? 0 : pages - windows.other_pages;
      for (int p = 0; p < pages; ++p) lists.table.push_back(p < first ? -1 : lists.num_pages++);
      lists.first.push_back(first);
      // The first head of a group owns its splits.
      const int end = lists.begin.back() + NumSplits(first, pages - 1);
      lists.begin.insert(lists.begin.end(), static_cast<size_t>(windows.group), end);
    }
    lists.slot.push_back(s);
    lists.row_begin.push_back(s + 1);
    lists.position.push_back(windows.length - 1);
  }
  std::vector<int32_t> ids(static_cast<size_t>(lists.num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
  for (int32_t& id : lists.table) id = id < 0 ? id : ids[static_cast<size_t>(id)];
  return lists;
}

float AverageMs(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                const StepSchedule& schedule) {
  constexpr int kWarmUps = 3, kRuns = 50;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&stop), cudaSuccess);
  EXPECT_EQ(Plan(batch, kv, schedule, params.layer), cudaSuccess);
  for (int run = 0; run < kWarmUps + kRuns; ++run) {
    if (run == kWarmUps) {
      EXPECT_EQ(cudaEventRecord(start, stream), cudaSuccess);
    }
    EXPECT_EQ(DecodeAttention(batch, params, kv, schedule, true, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaEventRecord(stop, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, stop), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(stop), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return ms / kRuns;
}

void Measure(const Windows& windows) {
  const WindowLists lists = ListsOf(windows);
  const auto pages = static_cast<size_t>(lists.num_pages);
  const auto group = static_cast<size_t>(windows.group);
  const size_t words = pages * kPageTokens * kHeadDim, rows = lists.slot.size() * kHeads * kHeadDim;
  // bf16 of magnitude 1/2 to 2, float32 around -1e-3.
  const DeviceArray<uint16_t> keys = RandomWords<uint16_t>(words, 0x80ff, 0x3f00);
  const DeviceArray<uint16_t> values = RandomWords<uint16_t>(words, 0x80ff, 0x3f00);
  const DeviceArray<uint16_t> q = RandomWords<uint16_t>(rows, 0x80ff, 0x3f00), out(rows);
  const DeviceArray<uint32_t> local =
      RandomWords<uint32_t>(pages * group * kPageTokens, 0x007fffff, 0xba800000);
  const DeviceArray<double> base(std::vector<double>(pages * group, -1.0));
  const DeviceArray<int32_t> table(lists.table), first(lists.first), begin(lists.begin);
  const DeviceArray<int32_t> slot(lists.slot),
      arrival_counter(std::vector<int32_t>(lists.begin.size()));
  const DeviceArray<int64_t> row_begin(lists.row_begin), position(lists.position);
  const DeviceArray<float> partial(static_cast<size_t>(lists.begin.back()) * group *
                                   PartialFloats(kHeadDim));

  PagedKv kv;
  kv.shape = {1,
              kHeads,
              kHeads / windows.group,
              kHeadDim,
              DType::kBF16,
              lists.num_pages,
              windows.batch,
              PagesFor(windows.length),
              false,
              false};
  kv.keys = keys.data();
  kv.values = values.data();
  kv.log_f_offset = local.data();
  kv.page_cum_log_f = base.data();
  kv.page_table = table.data();
  kv.first_live = first.data();
  BatchView batch;
  batch.num_seqs = windows.batch;
  batch.num_rows = windows.batch;
  batch.slot = slot.data();
  batch.row_begin = row_begin.data();
  batch.position = position.data();
  AttentionParams params;
  params.q = {q.data(), DType::kBF16, windows.batch, kHeads * kHeadDim, kHeads * kHeadDim};
  params.out = {out.data(), DType::kBF16, windows.batch, kHeads * kHeadDim, kHeads * kHeadDim};
  StepSchedule schedule;
  schedule.max_splits = lists.begin.back();
  schedule.split_begin = begin.data();
  schedule.max_seq_heads = windows.batch * kHeads;
  schedule.partial = partial.data();
  schedule.arrival_counter = arrival_counter.data();
  EXPECT_EQ(DecodeBlocks(kv.shape, &schedule.decode_blocks), cudaSuccess);
  const DeviceArray<BlockStart> starts(static_cast<size_t>(schedule.decode_blocks));
  schedule.block_starts = starts.data();

  const double ms = AverageMs(batch, params, kv, schedule);
  const double bytes =
      static_cast<double>(pages) * kPageTokens * (4 * kHeadDim + 4 * windows.group);
  std::printf("batch %d, length %d, groups of %d, %d splits, %.1f MB: %.4f ms, %.0f GB/s\n",
              windows.batch, windows.length, windows.group, schedule.max_splits, bytes * 1e-6, ms,
              bytes * 1e-6 / ms);
}

// Launches follow one another, so small ones overlap and, below 50 MB, read from the L2 cache.
TEST(DecodeAttentionSpeedTest, DISABLED_Bandwidth) {
  Measure({1, 1024, 1, 0});
  Measure({1, 4096, 1, 0});
  Measure({1, 16384, 1, 0});
  Measure({32, 4096, 4, 3});
  Measure({32, 16384, 4, 3});   // 27% of the pages
  Measure({32, 16384, 1, 0});   // all
  Measure({128, 4096, 24, 3});  // short windows nearly alone
  for (const int group : {2, 4, 8}) {
    Measure({1, 4096, 1, 0, group});
    Measure({32, 16384, 1, 0, group});
  }
}

}  // namespace
}  // namespace fox::cuda
