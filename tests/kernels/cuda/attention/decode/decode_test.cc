// DecodeAttention's kernels against float64 on ragged, pruned and mixed batches and groups of query
// heads, and the properties that serving relies on: a row has the same bits in any batch and by
// both kernels (for small batches and for all others), and the marks of absent partial results are
// restored.
#include "kernels/cuda/attention/decode/decode.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As CudaOps does after Append: where the batch may follow AppendDecode, nothing else writes
// meanwhile. Clusters get more sequences than in serving; their kernel does not depend on the
// number.
cudaError_t Attend(const DeviceCache& cache, const BatchView& batch, const AttentionParams& params,
                   bool by_clusters = false) {
  StepSchedule schedule = cache.schedule();
  DeviceArray<BlockStart> starts;
  if (by_clusters) {
    const int heads = static_cast<int>(cache.options().q_heads);
    schedule.by_clusters = true;
    schedule.decode_blocks = batch.num_seqs * heads * kClusterBlocks;
    starts = DeviceArray<BlockStart>(
        static_cast<size_t>(cache.options().layers * schedule.decode_blocks));
    schedule.block_starts = starts.data();
  }
  const bool reads_early = batch.num_rows == batch.num_seqs;
  const cudaError_t planned = Plan(batch, cache.kv(), schedule, params.layer);
  if (planned != cudaSuccess) return planned;
  const cudaError_t attended =
      DecodeAttention(batch, params, cache.kv(), schedule, reads_early, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return attended;
}

AttentionParams WithoutCounters(const DeviceCache& cache) {
  AttentionParams params = cache.params();
  params.blocks_total = params.blocks_pruned = nullptr;
  return params;
}

// For each row, its output in bf16 and the bits of its log sums.
std::vector<std::vector<uint32_t>> RowBits(DeviceCache& cache) {
  const AttentionParams& params = cache.params();
  const std::vector<uint16_t> out = cache.out_array().ToHost();
  const std::vector<float> lse = cache.lse_array().ToHost();
  std::vector<std::vector<uint32_t>> rows;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    const auto words = out.begin() + r * params.out.row_stride;
    const auto sums = lse.begin() + r * params.lse.row_stride;
    rows.emplace_back(words, words + params.out.cols);
    for (int64_t h = 0; h < params.lse.cols; ++h) {
      rows.back().push_back(std::bit_cast<uint32_t>(sums[h]));
    }
  }
  return rows;
}

// Sequences [first, first + count) of the cache's batch, of one row each, before any longer one.
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

// True if the kernel of small batches can take these sequences, even if they are more than in
// serving.
bool IsShort(const DeviceCache& cache, int first, int count) {
  const auto begin = cache.options().sequences.begin() + first;
  return std::all_of(begin, begin + count, [](const CacheSequence& sequence) {
    return sequence.rows == 1 && sequence.length <= kSmallBatchTokens;
  });
}

// Rows of one-row sequences have the bits `want` in parts of the batch, by either kernel.
void ExpectSameBitsInParts(DeviceCache& cache, const std::vector<std::vector<uint32_t>>& want) {
  const std::vector<CacheSequence>& sequences = cache.options().sequences;
  const auto is_long = [](const CacheSequence& sequence) { return sequence.rows > 1; };
  const int count = static_cast<int>(std::find_if(sequences.begin(), sequences.end(), is_long) -
                                     sequences.begin());
  std::vector<std::pair<int, int>> parts;  // first, count
  for (const int n : {2, 4, 20, count - 1, count}) {
    if (n > 1 && n <= count) parts.insert(parts.end(), {{0, n}, {count - n, n}});
  }
  for (int s = 0; s < count; s += std::max(1, count / 8)) parts.emplace_back(s, 1);
  const auto expect = [&](int first, int n, const char* kernel) {
    const std::vector<std::vector<uint32_t>> got = RowBits(cache);
    for (int s = first; s < first + n; ++s) {
      const auto row = static_cast<size_t>(s);
      ASSERT_EQ(got[row], want[row]) << "row " << s << " of " << n << " from " << first << kernel;
    }
  };
  for (const auto& [first, n] : parts) {
    SCOPED_TRACE(::testing::Message() << n << " sequences from " << first);
    cache.ResetOutputs();
    ASSERT_EQ(Attend(cache, Part(cache, first, n), WithoutCounters(cache)), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect(first, n, ", in splits"));
    if (!DecodeClusterRuns(cache.kv().shape) || !IsShort(cache, first, n)) continue;
    cache.ResetOutputs();
    ASSERT_EQ(Attend(cache, Part(cache, first, n), WithoutCounters(cache), true), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(expect(first, n, ", in clusters"));
  }
}

class DecodeAttentionTest : public ::testing::TestWithParam<CacheCase> {};

// All partial results are marked absent for the next layer.
void ExpectNoPartials(DeviceCache& cache) {
  for (const int32_t counter : cache.arrival_counter_array().ToHost()) ASSERT_EQ(counter, 0);
  if (HeadsTogether(cache.kv().shape) > 1) return;
  const std::vector<uint32_t> words = cache.partial_array().ToHost();
  EXPECT_EQ(std::count(words.begin(), words.end(), ~0U), std::ssize(words));
}

// Twice, as two layers of one step would: the second run depends on the marks that the first one
// left. Then by clusters, and without the optional outputs.
TEST_P(DecodeAttentionTest, MatchesFloat64InAnyBatch) {
  DeviceCache cache(GetParam().options);
  GetParam().expect(cache);
  const bool small_too =
      DecodeClusterRuns(cache.kv().shape) && IsShort(cache, 0, cache.batch().num_seqs);
  std::vector<std::vector<uint32_t>> want;
  for (int run = 0; run < (small_too ? 4 : 2); ++run) {
    cache.ResetOutputs();
    ASSERT_EQ(Attend(cache, cache.batch(), cache.params(), run >= 2), cudaSuccess);
    if (run == 0) cache.CheckOutputs(RowKind::kDecode);
    if (run == 0) want = RowBits(cache);
    ASSERT_EQ(RowBits(cache), want) << "run " << run;
    cache.CheckCounters(RowKind::kDecode);
    ASSERT_NO_FATAL_FAILURE(ExpectNoPartials(cache));
  }
  const std::vector<uint16_t> out = cache.out_array().ToHost();
  AttentionParams bare = WithoutCounters(cache);
  bare.lse = {};
  cache.ResetOutputs();
  ASSERT_EQ(Attend(cache, cache.batch(), bare), cudaSuccess);
  EXPECT_EQ(cache.out_array().ToHost(), out);
  ExpectSameBitsInParts(cache, want);
}

// Values with the bits that mark an absent result do not make the merge wait longer.
TEST(DecodeNanTest, EndsWhereValuesHaveAllBitsSet) {
  for (const int kv_heads : {1, 2}) {
    SCOPED_TRACE(::testing::Message() << kv_heads << " kv heads");
    CacheOptions options{.q_heads = 2, .kv_heads = kv_heads, .acp = AcpMode::kOff};
    options.sequences = OneRowEach({1, 700, 20000});
    DeviceCache cache(options);
    const PagedKvShape& shape = cache.kv().shape;
    const auto pool = static_cast<size_t>(shape.num_pages * shape.kv_bytes());
    ASSERT_EQ(cudaMemset(cache.kv().values, kPoison, pool), cudaSuccess);
    ASSERT_EQ(Attend(cache, cache.batch(), cache.params()), cudaSuccess);
    for (const std::vector<uint32_t>& row : RowBits(cache)) {
      const auto x = static_cast<uint16_t>(row.front());
      EXPECT_TRUE(std::isnan(Widen(x)) && x != 0xffff) << x;  // not the poison
    }
    ExpectNoPartials(cache);
  }
}

// Each word of a partial result is stored once, or its second store could come after the merge that
// marked it absent, and the next layer would take it. Heads of 16 and 32 have fewer words than a
// warp has lanes. Copies beside the kernel keep the second-level cache busy, which draws stores
// out.
TEST(DecodePartialsTest, AreGoneAfterEachOfManyLayers) {
  constexpr int kRuns = 20'000;
  constexpr size_t kBytes = size_t{64} << 20;
  const DeviceArray<uint8_t> from(kBytes), to(kBytes);
  cudaStream_t beside = nullptr, stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  for (const int head_dim : {16, 32, 64}) {
    SCOPED_TRACE(head_dim);
    CacheOptions options{.q_heads = 4, .kv_heads = 4, .head_dim = head_dim, .acp = AcpMode::kOff};
    options.sequences = OneRowEach({700, 1500, 4000, 1300, 2600, 900, 3100, 2048});
    DeviceCache cache(options);
    ASSERT_EQ(Attend(cache, cache.batch(), cache.params()), cudaSuccess);
    const std::vector<std::vector<uint32_t>> want = RowBits(cache);
    for (int run = 0; run < kRuns; ++run) {
      if (run % 50 == 0) {
        ASSERT_EQ(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, beside),
                  cudaSuccess)
            << "run " << run;
      }
      ASSERT_EQ(DecodeAttention(cache.batch(), WithoutCounters(cache), cache.kv(), cache.schedule(),
                                true, stream),
                cudaSuccess)
          << "run " << run;
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(RowBits(cache), want);
    ExpectNoPartials(cache);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(beside), cudaSuccess);
}

void ExpectPruned(const DeviceCache& cache) {
  int pruned = 0;
  for (int s = 0; s < cache.batch().num_seqs; ++s) {
    for (int h = 0; h < cache.options().kv_heads; ++h) pruned += cache.first_live(s, h);
  }
  EXPECT_GT(pruned, 0);
}

std::vector<int64_t> RandomLengths(size_t count, int most, uint32_t seed) {
  std::vector<int64_t> lengths(count);
  std::mt19937 random(seed);
  for (int64_t& length : lengths) length = std::uniform_int_distribution<int>(1, most)(random);
  return lengths;
}

// Lengths around half pages, pages, splits, and turns of the cluster.
std::vector<CacheCase> CasesOfHeadDim(int d) {
  const std::vector<CacheSequence> sequences =
      OneRowEach({1,    2,    31,   32,   33,   63,   64,   65,   95,   96,   97,   127,  128,
                  129,  255,  256,  257,  320,  513,  640,  700,  1025, 1087, 1088, 1089, 2000,
                  2048, 2049, 3000, 4000, 4096, 4097, 4160, 4161, 4353, 6000, 8128, 8191, 8192});
  CacheOptions whole{.head_dim = d, .sequences = sequences, .acp = AcpMode::kOff};
  CacheOptions pruned{.q_heads = 5, .kv_heads = 5, .head_dim = d, .sequences = sequences};
  pruned.gate_means = {-1, 1, 3, 5, 9};
  pruned.output_norm = pruned.output_gate = true;
  CacheOptions few = pruned;  // windows of two rounds of a cluster
  few.sink = true;
  few.sequences = OneRowEach({300, 65, 4353});
  CacheOptions groups{.q_heads = 6, .kv_heads = 2, .head_dim = d};
  groups.gate_means = {0, 2, 4, 6, 3, 1};
  groups.output_gate = groups.sink = true;
  groups.gate_act = Activation::kSilu;
  groups.sequences = OneRowEach({1500, 70, 900, 4500});
  // Sequences of several rows and padding lie between.
  CacheOptions windows{.q_heads = 6, .kv_heads = 2, .head_dim = d};
  windows.acp = AcpMode::kPaper;
  windows.gate_means = {0, 2, 1, 9, 0.5, 3};
  windows.output_norm = true;
  windows.sequences = {{1500, 1, -10, 3},       {70, 1, -10, 4},   {900, 30, -10, 0},
                       {1, 1, -10, -1},         {1, 1, -10, 1},    {640, 1, -3, 5},
                       {800, 1, -kInfinity, 2}, {4000, 1, -10, 6}, {1025, 1, -20, 7}};
  const std::string name = std::to_string(d);
  return {{"Whole" + name, whole},
          {"Pruned" + name, pruned, ExpectPruned},
          {"Few" + name, few, ExpectPruned},
          {"Groups" + name, groups},
          {"Windows" + name, windows, ExpectPruned}};
}

// Query heads that are computed together, of all numbers.
std::vector<CacheCase> CasesOfGroup(int d, int group) {
  CacheOptions options{.q_heads = 2 * group, .kv_heads = 2, .head_dim = d};
  options.gate_means = {1, 3, 6, 2, 9};
  options.sequences = {{1500, 1, -10, 3}, {70, 1, -10, 4},   {900, 30, -10, 0},
                       {1, 1, -10, -1},   {1, 1, -10, 1},    {640, 1, -3, 5},
                       {33, 1, -10, 2},   {2500, 1, -10, 6}, {1025, 1, -20, 7}};
  CacheOptions whole = options, normed = options, gated = options;
  whole.acp = AcpMode::kOff;
  normed.output_norm = normed.output_gate = normed.sink = true;
  gated.acp = AcpMode::kPaper;
  gated.output_gate = true;
  gated.gate_act = Activation::kSilu;
  const std::string name = std::to_string(d) + "x" + std::to_string(group);
  return {{"Together" + name, whole},
          {"TogetherNormed" + name, normed},
          {"TogetherGated" + name, gated}};
}

// Windows of more splits than a warp has lanes, which read the headers of their results.
CacheCase LongTogether(int d) {
  constexpr int64_t kShorter = 9000;
  CacheOptions options{.q_heads = 6, .kv_heads = 2, .head_dim = d};
  options.gate_means = {8};
  options.sequences = OneRowEach({kShorter, 65, 20000});
  options.acp = AcpMode::kOff;
  options.sink = true;
  return {"LongTogether" + std::to_string(d), options,
          [](const DeviceCache&) { EXPECT_GT(NumSplits(0, (kShorter - 1) / kPageTokens), 32); }};
}

// A batch whose rows are looked at in parts, of heads computed together, before two prompts.
CacheOptions ManyTogether(int d) {
  CacheOptions options{.q_heads = 12, .kv_heads = 3, .head_dim = d};
  options.gate_means = {2, 9, 4};
  options.output_norm = options.output_gate = true;
  options.sequences = {{6000, 1, -10, 2}, {700, 1, -10, 5}, {1, 1, -10, -1}, {257, 1, -10, 1}};
  for (int s = 0; s < 30; ++s) options.sequences.push_back({100 + 97 * s, 1, -10, 8 + s});
  options.sequences.insert(options.sequences.end(), {{700, 40, -10, 4}, {1200, 200, -10, 3}});
  return options;
}

CacheOptions& Add(const std::string& name, int heads, const std::vector<double>& gate_means,
                  const std::vector<CacheSequence>& sequences, std::vector<CacheCase>& cases) {
  CacheOptions options{.q_heads = heads, .kv_heads = heads, .sequences = sequences};
  options.gate_means = gate_means;
  cases.push_back({name, options});
  return cases.back().options;
}

void AddBatches(std::vector<CacheCase>& cases) {
  const auto add = [&](const std::string& name, int heads, const std::vector<double>& gate_means,
                       const std::vector<CacheSequence>& sequences) -> CacheOptions& {
    return Add(name, heads, gate_means, sequences, cases);
  };
  for (const int64_t length : {1, 64, 300, 20000}) {
    CacheOptions& one = add("OneHead" + std::to_string(length), 1, {8}, OneRowEach({length}));
    one.layers = 1;
    one.layer = 0;
  }
  // Padding and sequences of several rows own no splits and are left alone.
  CacheOptions& mixed = add("Mixed", 3, {1, 3, 6},
                            {{500, 1, -10, -1},
                             {300, 40, -10, 4},
                             {900, 1, -10, 0},
                             {1, 1, -10, -1},
                             {200, 200, -10, 2},
                             {129, 1, -10, 3},
                             {64, 2, -10, 1},
                             {65, 1, -10, 5},
                             {77, 1, -10, -1}});
  mixed.output_norm = mixed.output_gate = mixed.sink = true;
  add("Padded", 2, {1, 8}, {{1, 1, -10, -1}, {3000, 1, -10, 0}, {77, 1, -10, -1}, {65, 1, -10, 1}});
  add("NoItems", 2, {3}, {{100, 3, -10, 0}, {1, 1, -10, -1}});
  // Between two sequences with splits lie many pairs without.
  CacheOptions& gaps = add("PairsWithoutItems", 7, {3}, OneRowEach({200}));
  gaps.head_dim = 32;
  for (int i = 0; i < 30; ++i) gaps.sequences.push_back({2, 2, -10, 2 + i});
  gaps.sequences.insert(gaps.sequences.end(), {{300, 1, -10, 40}, {1, 1, -10, -1}});
  // More pairs than threads, more splits than blocks.
  add("Large", 12, {9, 2, 2, 3}, OneRowEach(RandomLengths(48, 2500, 7)));
  cases.back().expect = [](const DeviceCache& cache) {
    int splits = 0;
    for (int i = 0; i < 48 * 12; ++i) {
      const int64_t length = cache.options().sequences[static_cast<size_t>(i / 12)].length;
      splits += NumSplits(cache.first_live(i / 12, i % 12), PagesFor(length) - 1);
    }
    ASSERT_GT(splits, 1000);
  };
  // A small batch with padding, the same rows beside a longer sequence, and beside prompts.
  CacheOptions& beside = add("Beside", 3, {1, 3, 9},
                             {{4500, 1, -10, 2},
                              {1, 1, -10, -1},
                              {8192, 1, -10, 0},
                              {300, 1, -10, 5},
                              {20000, 1, -10, 1},
                              {700, 40, -10, 4},
                              {1200, 200, -10, 3}});
  beside.output_norm = beside.output_gate = true;
  cases.back().expect = ExpectPruned;
}

void AddLengthsAndGates(std::vector<CacheCase>& cases) {
  std::vector<int64_t> of_all_pages = RandomLengths(kSmallBatchTokens / kPageTokens, 64, 5);
  for (size_t i = 0; i < of_all_pages.size(); ++i) {
    of_all_pages[i] += static_cast<int64_t>(i) * kPageTokens;
  }
  CacheOptions& pages = Add("AllPageCounts", 1, {3}, OneRowEach(of_all_pages), cases);
  pages.acp = AcpMode::kOff;
  pages.output_norm = pages.output_gate = true;
  // Windows of more than 512 pages are cut into larger splits, each (sequence, head) by itself: the
  // first head keeps a short window, the other one nearly all pages.
  CacheOptions& windows =
      Add("LongWindows", 2, {2, 16}, OneRowEach({65536, 500, 65537, 270001}), cases);
  windows.head_dim = 32;
  windows.layers = 1;
  windows.layer = 0;
  cases.back().expect = [](const DeviceCache& cache) {
    const auto shift = [&](int h) { return SplitShift(PagesFor(270001) - cache.first_live(3, h)); };
    EXPECT_EQ(shift(0), kMinSplitShift);
    EXPECT_EQ(shift(1), kMinSplitShift + 2);
  };
  // Gates so strong that float32 alone would lose the decay, or leave nothing but the last key.
  for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper}) {
    CacheOptions& strong =
        Add("StrongGates" + ModeName(acp), 2, {3, 8}, OneRowEach({3000, 1000, 64, 65}), cases);
    strong.acp = acp;
    strong.strong_gate_rate = 0.02;
    strong.evict = false;
  }
}

std::vector<CacheCase> DecodeCases() {
  std::vector<CacheCase> cases;
  AddBatches(cases);
  AddLengthsAndGates(cases);
  const auto add = [&](const std::vector<CacheCase>& more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  for (const int d : {16, 32, 64, 128}) add(CasesOfHeadDim(d));
  for (const int d : {64, 128}) {
    for (const int group : {2, 3, 4, 9, 16}) add(CasesOfGroup(d, group));
    add({{"ManyTogether" + std::to_string(d), ManyTogether(d)}});
    add({LongTogether(d)});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, DecodeAttentionTest, ::testing::ValuesIn(DecodeCases()),
                         CaseName<CacheCase>);

// Codes take half the registers, so a block more fits on an SM, which the named barriers allow.
TEST(DecodeBlocksTest, AreAsManyAsTheRegistersAllow) {
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  if (device.sharedMemPerMultiprocessor < size_t{200} << 10) GTEST_SKIP() << "too little memory";
  for (const auto& [head_dim, in_bf16] : {std::pair{64, 4}, std::pair{128, 2}}) {
    PagedKvShape shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.head_dim = head_dim;
    for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
      SCOPED_TRACE(::testing::Message() << head_dim << ", " << SizeOf(dtype) << " bytes");
      shape.dtype = dtype;
      int blocks = 0;
      ASSERT_EQ(DecodeBlocks(shape, &blocks), cudaSuccess);
      const int of_sm = in_bf16 + (dtype == DType::kE4M3 ? 1 : 0);
      EXPECT_EQ(blocks, of_sm * device.multiProcessorCount);
    }
  }
}

TEST(DecodeBatchTest, NoSequencesAreNoWork) {
  const DeviceCache cache({.sequences = OneRowEach({100})});
  BatchView empty = cache.batch();
  empty.num_seqs = 0;
  EXPECT_EQ(Attend(cache, empty, cache.params()), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda::testing
