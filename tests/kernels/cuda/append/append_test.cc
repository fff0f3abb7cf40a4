// Append on the GPU against the CPU backend on the same bf16 inputs: pages, gates, summaries, state
// and queries, in one step or many.
#include "tests/kernels/cuda/append/append_pair.h"

namespace fox::cuda::testing {
namespace {

// Prompts in one step, then tokens one by one across page ends, then chunks of all kinds.
void RunMixed(const AppendSetup& setup) {
  AppendPair pair(setup, 4, 800);
  pair.Step({63, 1, 129, 0});
  pair.Compare();
  for (int i = 0; i < 70; ++i) pair.Step({1, 1, 1, i % 2}, i % 3 == 0);
  pair.Compare();
  pair.Step({64, 1, 200, 127}, true);
  pair.Step({1, 65, 2, 128});
  pair.Step({57, 30, 1, 300});
  pair.Compare();
}

TEST(AppendTest, CopiedKeysDiagonalBound) { RunMixed({}); }
TEST(AppendTest, CopiedKeysDenseBound) { RunMixed({.bound = Bound::kDense}); }
TEST(AppendTest, CopiedKeysLinearAndAbsoluteBound) { RunMixed({.bound = Bound::kAll}); }
TEST(AppendTest, EverythingAtOnce) {
  RunMixed({.shift = true, .norm = true, .rope = true, .gate_bias = true});
}
TEST(AppendTest, TokenShiftAndNorm) { RunMixed({.shift = true, .norm = true, .seed = 2}); }
TEST(AppendTest, RotationAlone) { RunMixed({.rope = true, .bound = Bound::kDense}); }
TEST(AppendTest, PaperBound) { RunMixed({.norm = true, .acp = AcpMode::kPaper}); }
TEST(AppendTest, PaperWithoutNorm) { RunMixed({.bound = Bound::kAll, .acp = AcpMode::kPaper}); }
TEST(AppendTest, WithoutPruning) { RunMixed({.shift = true, .acp = AcpMode::kOff}); }
TEST(AppendTest, StrongGates) { RunMixed({.gate_bias = true, .gate_mean = -60}); }
TEST(AppendTest, OpenGates) { RunMixed({.gate_mean = 14}); }

TEST(AppendTest, HeadDimensionsAndGroups) {
  for (const int head_dim : {16, 32, 64, 128}) {
    SCOPED_TRACE(head_dim);
    for (const bool computed : {false, true}) {
      RunMixed({.head_dim = head_dim,
                .q_heads = 10,
                .kv_heads = 2,
                .shift = computed,
                .norm = computed,
                .rope = computed,
                .bound = computed ? Bound::kDiagonal : Bound::kAll});
      RunMixed({.head_dim = head_dim, .q_heads = 1, .kv_heads = 1, .seed = 3});
    }
  }
}

// More blocks of a sequence than a warp has lanes.
TEST(AppendTest, LongChunks) {
  for (const bool computed : {false, true}) {
    AppendPair pair({.q_heads = 4, .kv_heads = 2, .shift = computed, .norm = computed}, 2, 6000);
    pair.Step({30, 2048});
    pair.Step({2500, 1});
    pair.Step({3000, 3000});
    pair.Compare();
  }
}

TEST(AppendTest, ManySequences) {
  const int slots = 200;
  AppendPair pair({.head_dim = 16, .q_heads = 5, .kv_heads = 5, .norm = true}, slots, 200);
  std::vector<int64_t> prompts, tokens(slots, 1);
  for (int i = 0; i < slots; ++i) prompts.push_back(1 + i % 130);
  pair.Step(prompts, true);
  for (int i = 0; i < 3; ++i) pair.Step(tokens, i % 2 == 1);
  pair.Compare();
}

// Angles of a million radians keep their digits.
TEST(AppendTest, RotationFarOut) {
  const int64_t start = int64_t{kPageTokens} * 15625;
  AppendPair pair({.rope = true, .acp = AcpMode::kOff}, 1, start + 400);
  pair.StartAt(0, start);
  pair.Step({100});
  pair.Step({1});
  pair.Step({130});
  pair.Compare();
}
}  // namespace
}  // namespace fox::cuda::testing
