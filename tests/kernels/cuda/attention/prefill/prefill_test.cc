// PrefillSm80 and PrefillSm90 against float64 attention: modes, head dims, grouped heads, ragged
// batches with decoding and padded sequences among them, chunks that begin anywhere, gates from
// none to annihilating, outputs as they are, normed, gated, both. Repeated passes have the same
// bits.
#include "kernels/cuda/attention/prefill/prefill.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using PrefillKernel = decltype(&PrefillSm80);

CacheOptions BaseOptions(AcpMode acp, int head_dim) {
  return {.q_heads = 4,
          .kv_heads = 2,
          .head_dim = head_dim,
          .gate_means = {1, 9, 3, 5},
          .acp = acp,
          .seed = static_cast<uint64_t>(head_dim * 3) + static_cast<uint64_t>(acp)};
}

// Whole prompts of all awkward lengths, among them sequences that are not the kernel's.
CacheOptions Prompts(AcpMode acp, int head_dim) {
  CacheOptions options = BaseOptions(acp, head_dim);
  options.output_norm = options.output_gate = true;
  options.sequences = {{700, 700, -10, 2}, {1, 1, -10, -1},         {129, 129, -10, 7},
                       {65, 1, -10, 4},    {64, 64, -10, 0},        {63, 63, -kInfinity, 9},
                       {1, 1, -10, 5},     {128, 128, -10, 1},      {127, 127, -10, 3},
                       {1, 1, -10, -1},    {65, 65, -kInfinity, 8}, {2, 2, -10, 6}};
  return options;
}

// Later chunks, which begin and end in the middle of pages and tiles, or just across their edges.
CacheOptions Chunks(AcpMode acp, int head_dim) {
  CacheOptions options = BaseOptions(acp, head_dim);
  options.kv_heads = 4;
  options.gate_means = {1, 1, 9, 4};
  options.output_gate = true;
  options.gate_act = Activation::kSilu;
  options.sequences = {{1500, 300, -8, 1}, {1000, 37, -10, 0},  {193, 2, -10, 5},
                       {191, 2, -10, 2},   {2000, 1, -10, 6},   {300, 100, -10, 3},
                       {200, 136, -10, 4}, {1023, 383, -10, 8}, {4000, 129, -10, 7}};
  return options;
}

// Logits without a bound.
CacheOptions WithoutQkNorm(int head_dim) {
  CacheOptions options = Chunks(AcpMode::kPaper, head_dim);
  options.qk_norm = false;
  options.sink = true;
  options.gate_means = {0, 1, 9, 2};
  return options;
}

// Gates that annihilate the past, with the tile's first row as far from some rows as it gets.
CacheOptions StrongGates(AcpMode acp, int head_dim, double rate) {
  CacheOptions options = BaseOptions(acp, head_dim);
  options.q_heads = options.kv_heads = 2;
  options.gate_means = {5, 2};
  options.strong_gate_rate = rate;
  options.sink = acp == AcpMode::kOff;
  options.sequences = {{500, 500, -10, 0}, {777, 260, -10, 1}};
  return options;
}

// A long prompt with local and global heads: where pruning and the rows' own certificates work.
CacheOptions LongPrompt(AcpMode acp, int head_dim) {
  CacheOptions options = BaseOptions(acp, head_dim);
  options.q_heads = 6;
  options.kv_heads = 1;
  options.gate_means = {1, 2, 4, 6, 9, 0};
  options.output_norm = true;
  options.evict = false;
  options.sequences = {{5000, 5000, -10, 0}};
  return options;
}

std::vector<CacheCase> PrefillCases() {
  std::vector<CacheCase> cases;
  for (const int d : {16, 32, 64, 128}) {
    for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      const std::string suffix = ModeName(acp) + std::to_string(d);
      cases.push_back({"Prompts" + suffix, Prompts(acp, d)});
      cases.push_back({"Chunks" + suffix, Chunks(acp, d)});
      cases.push_back({"RareStrongGates" + suffix, StrongGates(acp, d, 0.01)});
      cases.push_back({"StrongGates" + suffix, StrongGates(acp, d, 0.5)});
      cases.push_back({"LongPrompt" + suffix, LongPrompt(acp, d)});
    }
    cases.push_back({"WithoutQkNorm" + std::to_string(d), WithoutQkNorm(d)});
    CacheOptions sinks = Chunks(AcpMode::kCertified, d);
    sinks.sink = true;
    cases.push_back({"Sinks" + std::to_string(d), sinks});
  }
  // More work tiles than the device has multiprocessors: rings that wrap, blocks that take several.
  CacheOptions many = BaseOptions(AcpMode::kCertified, 64);
  many.q_heads = many.kv_heads = 20;
  many.gate_means = {1, 9};
  many.sequences = {{2000, 2000, -10, 0}, {300, 200, -10, 1}, {1100, 1100, -10, 2}};
  for (const int d : {32, 64, 128}) {
    many.head_dim = d;
    cases.push_back({"ManyTiles" + std::to_string(d), many});
  }
  return cases;
}

// Outputs, log sums and counters against the oracle; then twice more with spare tiles and without
// lse and counters, which must give the same bits. `sum_rounding`: of the sum of a row's weights,
// relative.
void ExpectPrefill(PrefillKernel kernel, double sum_rounding, DeviceCache& cache,
                   const AttentionParams& params) {
  ASSERT_GT(cache.num_tiles(), 0);
  ASSERT_EQ(kernel(cache.batch(), params, cache.kv(), cache.schedule(), cache.num_tiles(), nullptr),
            cudaSuccess);
  cache.CheckOutputs(RowKind::kPrefill, sum_rounding);
  const std::vector<uint16_t> first = cache.out_array().ToHost();
  AttentionParams bare = params;
  bare.lse = {};
  bare.blocks_total = bare.blocks_pruned = nullptr;
  for (int pass = 0; pass < 2; ++pass) {
    cache.ResetOutputs();
    ASSERT_EQ(kernel(cache.batch(), bare, cache.kv(), cache.schedule(), cache.schedule().max_tiles,
                     nullptr),
              cudaSuccess);
    EXPECT_EQ(cache.out_array().ToHost(), first);
  }
}

class PrefillTest : public ::testing::TestWithParam<CacheCase> {};

TEST_P(PrefillTest, Sm80MatchesFloat64) {
  DeviceCache cache(GetParam().options);
  ExpectPrefill(PrefillSm80, 0, cache, cache.params());
}

// With a small bound on logits the softmax does without maxima; without one it follows them: the
// cases whose far keys outweigh near ones, and those with the widest range of gates.
TEST_P(PrefillTest, Sm90MatchesFloat64) {
  if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  if (GetParam().options.head_dim == 16) GTEST_SKIP() << "PrefillSm80 alone has it";
  DeviceCache cache(GetParam().options);
  AttentionParams params = cache.params();
  ExpectPrefill(PrefillSm90, kBf16Rounding, cache, params);
  const std::string& name = GetParam().name;
  if (!name.starts_with("LongPrompt") && !name.starts_with("RareStrongGates")) return;
  params.bound.max_logit_bound = nullptr;
  cache.ResetOutputs();
  ExpectPrefill(PrefillSm90, kBf16Rounding, cache, params);
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefillTest, ::testing::ValuesIn(PrefillCases()),
                         CaseName<CacheCase>);

// A grid's second dimension has at most 65,535 blocks: tiles of 8.4 million tokens.
TEST(PrefillLimitsTest, Sm80TakesMoreTilesThanAGridsSecondDimension) {
  DeviceCache cache({.sequences = {{300, 300, -10, 0}}});
  constexpr int kTiles = 70000;
  ASSERT_EQ(
      PrefillSm80(cache.batch(), cache.params(), cache.kv(), cache.schedule(), kTiles, nullptr),
      cudaSuccess);
  cache.CheckOutputs(RowKind::kPrefill, 0);
}

}  // namespace
}  // namespace fox::cuda::testing
