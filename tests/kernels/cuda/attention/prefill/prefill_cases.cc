// The shapes, and the two runs of each. See prefill_cases.h.
#include "tests/kernels/cuda/attention/prefill/prefill_cases.h"

#include <limits>

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string ModeName(AcpMode acp) {
  return acp == AcpMode::kOff ? "Off" : acp == AcpMode::kPaper ? "Paper" : "Certified";
}

CacheOptions BaseOptions(AcpMode acp, int head_dim) {
  CacheOptions options;
  options.acp = acp;
  options.head_dim = head_dim;
  options.q_heads = 4;
  options.kv_heads = 2;
  options.gate_means = {1, 9, 3, 5};
  options.seed = static_cast<uint64_t>(head_dim * 3) + static_cast<uint64_t>(acp);
  return options;
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

// Boundaries by the rows' own queries, and logits without a bound.
CacheOptions WithoutQkNorm(int head_dim) {
  CacheOptions options = Chunks(AcpMode::kPaper, head_dim);
  options.qk_norm = false;
  options.gate_means = {0, 1, 9, 2};
  return options;
}

// Gates that annihilate the past, with the tile's first row as far from some rows as it gets.
CacheOptions StrongGates(AcpMode acp, int head_dim, double rate) {
  CacheOptions options = BaseOptions(acp, head_dim);
  options.q_heads = options.kv_heads = 2;
  options.gate_means = {5, 2};
  options.strong_gate_rate = rate;
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

}  // namespace

std::vector<PrefillCase> PrefillCases(const std::vector<int>& head_dims) {
  std::vector<PrefillCase> cases;
  for (const int d : head_dims) {
    for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      const std::string suffix = ModeName(acp) + std::to_string(d);
      cases.push_back({"Prompts" + suffix, Prompts(acp, d)});
      cases.push_back({"Chunks" + suffix, Chunks(acp, d)});
      cases.push_back({"RareStrongGates" + suffix, StrongGates(acp, d, 0.01)});
      cases.push_back({"StrongGates" + suffix, StrongGates(acp, d, 0.5)});
      cases.push_back({"LongPrompt" + suffix, LongPrompt(acp, d)});
    }
    cases.push_back({"WithoutQkNorm" + std::to_string(d), WithoutQkNorm(d)});
  }
  return cases;
}

void ExpectPrefill(PrefillKernel kernel, const PrefillCase& c, double sum_rounding) {
  DeviceCache cache(c.options);
  ASSERT_GT(cache.num_tiles(), 0);
  ASSERT_EQ(kernel(cache.batch(), cache.params(), cache.kv(), cache.schedule(), cache.num_tiles(),
                   nullptr),
            cudaSuccess);
  cache.CheckOutputs(RowKind::kPrefill, sum_rounding);
  const std::vector<uint16_t> first = cache.out_array().ToHost();

  cache.ResetOutputs();
  AttentionParams bare = cache.params();
  bare.lse = {};
  bare.blocks_total = nullptr;
  bare.blocks_pruned = nullptr;
  ASSERT_EQ(kernel(cache.batch(), bare, cache.kv(), cache.schedule(), cache.schedule().max_tiles,
                   nullptr),
            cudaSuccess);
  EXPECT_EQ(cache.out_array().ToHost(), first);
}

}  // namespace fox::cuda::testing
