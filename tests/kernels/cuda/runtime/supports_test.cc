// Workloads that the GPU refuses, and why, without a GPU.
#include "kernels/cuda/runtime/supports.h"

#include <gtest/gtest.h>

namespace fox::cuda {
namespace {

Workload Served() {
  Workload load;
  load.shape = {.layers = 24, .q_heads = 24, .kv_heads = 24, .head_dim = 64, .max_pages = 16384};
  load.hidden_size = 1536;
  load.intermediate_size = 4096;
  load.vocab_size = 50277;
  load.max_rows = 8192;
  load.max_seqs = 64;
  return load;
}

// The reason after one change; empty: served.
template <typename Change>
std::string ReasonAfter(const Change& change) {
  Workload load = Served();
  change(load);
  return Unsupported(load).value_or("");
}

TEST(SupportsTest, TakesWhatTheKernelsTake) {
  EXPECT_EQ(Unsupported(Served()), std::nullopt);
  for (int head_dim : {16, 32, 64, 128}) {
    SCOPED_TRACE(::testing::Message() << head_dim);
    EXPECT_EQ(ReasonAfter([&](Workload& w) { w.shape.head_dim = head_dim; }), "");
  }
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.max_seqs = kMaxSeqs; }), "");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.max_rows = kMaxRows; }), "");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.shape.q_heads = 16, w.shape.kv_heads = 1; }), "");
}

TEST(SupportsTest, NamesTheNumberThatIsTooMuch) {
  for (int head_dim : {0, 8, 48, 80, 256}) {
    SCOPED_TRACE(::testing::Message() << head_dim);
    EXPECT_EQ(ReasonAfter([&](Workload& w) { w.shape.head_dim = head_dim; }),
              "head size " + std::to_string(head_dim) + ": on a GPU it must be 16, 32, 64 or 128");
  }
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.shape.q_heads = 34, w.shape.kv_heads = 2; }),
            "at most 16 query heads for each kv head on a GPU, not 17");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.hidden_size = 1540; }),
            "hidden size 1540: on a GPU it must be a multiple of 8");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.intermediate_size = 4097; }),
            "intermediate size 4097: on a GPU it must be a multiple of 8");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.vocab_size = kMaxVocab + 1; }),
            "at most 1073741824 tokens in a vocabulary on a GPU, not 1073741825");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.max_seqs = 2080; }),
            "at most 2048 sequences at once on a GPU, not 2080");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.max_rows = kMaxRows + 1; }),
            "at most 1048576 tokens in one step on a GPU, not 1048577");
  EXPECT_EQ(ReasonAfter([](Workload& w) { w.shape.max_pages = 1 << 25; }),
            "at most 2147483584 tokens in one sequence on a GPU, not 2147483648");
}

}  // namespace
}  // namespace fox::cuda
