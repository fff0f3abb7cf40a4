// BatchBuilder over the CPU's memory: which rows are sampled from, and how.
#include "engine/run/batch_builder.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

PlannedSequence Planned(int32_t slot, std::vector<int32_t> token_ids,
                        std::vector<int32_t> logit_rows) {
  PlannedSequence planned;
  planned.slot = slot;
  planned.token_ids = std::move(token_ids);
  planned.logit_rows = std::move(logit_rows);
  return planned;
}

class BatchBuilderTest : public testing::Test {
 protected:
  void Build(const StepPlan& plan, int64_t padded = 0) {
    builder_.Build(plan, padded, staging_.data(), nullptr);
  }

  CpuOps ops_{{DType::kF32, true, 1}};
  BatchBuilder builder_{ops_, 16, 8, 16, 8};
  std::vector<std::byte> staging_ = std::vector<std::byte>(builder_.bytes(), std::byte{0xff});
};

TEST_F(BatchBuilderTest, SampleRowsHoldTheSamplePlan) {
  StepPlan plan;
  plan.sequences.push_back(Planned(2, {5, 6, 7}, {0, 2}));  // for the host
  plan.sequences.push_back(Planned(1, {8, 9}, {1}));
  SampleRow& sample = plan.sequences.back().sample.emplace();
  sample.temperature = 0.5f;
  sample.logits_processor.stops_from = 14;
  Build(plan);
  ASSERT_EQ(builder_.num_logit_rows(), 3);
  EXPECT_EQ(builder_.logit_rows()[2], 4);
  const SampleRow* rows = builder_.sample_rows();
  EXPECT_EQ(rows[0].slot, -1);
  EXPECT_EQ(rows[1].slot, -1);
  const SampleRow& row = rows[2];
  EXPECT_EQ(row.slot, 1);
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.logits_processor.stops_from, 14u);
  EXPECT_EQ(row.logits_processor.mask, -1);
  for (int i = 0; i < 2; ++i) {
    plan.sequences.push_back(plan.sequences.back());
    plan.sequences.back().sample->logits_processor.mask = 0;
  }
  Build(plan);
  EXPECT_EQ(rows[2].logits_processor.mask, -1);
  EXPECT_EQ(rows[3].logits_processor.mask, 0);
  EXPECT_EQ(rows[4].logits_processor.mask, 1);
}

TEST_F(BatchBuilderTest, PaddingIsNotSampledFrom) {
  StepPlan plan;
  plan.sequences.push_back(Planned(3, {kLastSampledToken}, {0}));
  plan.sequences.back().sample.emplace().logits_processor.on = true;
  Build(plan, 4);
  ASSERT_EQ(builder_.batch().num_seqs, 4);
  ASSERT_EQ(builder_.num_logit_rows(), 4);
  EXPECT_EQ(builder_.sample_rows()[0].slot, 3);
  EXPECT_TRUE(builder_.sample_rows()[0].logits_processor.on);
  for (int i = 1; i < 4; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(builder_.batch().slot[i], -1);
    EXPECT_EQ(builder_.sample_rows()[i].slot, -1);
    EXPECT_FALSE(builder_.sample_rows()[i].logits_processor.on);
  }
}

TEST_F(BatchBuilderTest, SmallBatchesAreOneShortRow) {
  const auto small = [&](int seqs, int64_t longest, size_t rows, int64_t padded) {
    StepPlan plan;
    for (int i = 0; i < seqs; ++i) {
      plan.sequences.push_back(Planned(i, {1}, {0}));
    }
    plan.sequences.back().token_ids.resize(rows, 1);
    plan.sequences.back().position = longest - static_cast<int64_t>(rows);
    Build(plan, padded);
    return builder_.batch().small;
  };
  EXPECT_TRUE(small(1, 1, 1, 1));
  EXPECT_TRUE(small(1, kSmallBatchTokens, 1, 1));
  EXPECT_FALSE(small(1, kSmallBatchTokens + 1, 1, 1));
  EXPECT_FALSE(small(1, 9, 1, 2));  // padded
  EXPECT_FALSE(small(2, 9, 1, 0));
  EXPECT_FALSE(small(1, 9, 2, 0));
}

TEST_F(BatchBuilderTest, MaxTokensAreThoseOfTheLongestSequence) {
  StepPlan plan;
  for (const int64_t position : {7, 900, 30}) {
    plan.sequences.push_back(Planned(0, {1}, {0}));
    plan.sequences.back().position = position;
  }
  plan.sequences.back().token_ids.resize(5, 1);
  Build(plan);
  EXPECT_EQ(builder_.batch().max_tokens, 901);
  plan.sequences.back().position = 897;
  Build(plan);
  EXPECT_EQ(builder_.batch().max_tokens, 902);
}

TEST_F(BatchBuilderTest, SequencesOfOneTokenAreDecodes) {
  const auto decodes = [&](const std::vector<size_t>& rows, int64_t padded) {
    StepPlan plan;
    for (const size_t count : rows) {
      plan.sequences.push_back(Planned(0, std::vector<int32_t>(count, 1), {}));
    }
    Build(plan, padded);
    EXPECT_EQ(builder_.batch().all_decodes(),
              builder_.batch().num_rows == builder_.batch().num_seqs);
    return builder_.batch().num_decodes;
  };
  EXPECT_EQ(decodes({1, 1, 1}, 0), 3);
  EXPECT_EQ(decodes({1, 1, 1}, 8), 8);
  EXPECT_EQ(decodes({1, 1, 3, 2}, 0), 2);
  EXPECT_EQ(decodes({5}, 0), 0);
  EXPECT_DEATH(decodes({1, 2, 1}, 0), "");
}

// One copy of the report brings the pool's count and fault, which no Build touches.
TEST_F(BatchBuilderTest, FreePagesLieInTheReport) {
  *builder_.outputs().free_pages = 77;
  *builder_.outputs().pool_fault = PoolFault::kTableEnd;
  StepPlan plan;
  plan.sequences.push_back(Planned(1, {8, 9}, {1}));
  Build(plan);
  std::vector<std::byte> copy(builder_.output_buffer(),
                              builder_.output_buffer() + builder_.output_bytes());
  EXPECT_EQ(*builder_.OutputsAt(copy.data()).free_pages, 77);
  copy.resize(builder_.pool_bytes());
  EXPECT_EQ(*builder_.OutputsAt(copy.data()).free_pages, 77);
  EXPECT_EQ(*builder_.OutputsAt(copy.data()).pool_fault, PoolFault::kTableEnd);
}

}  // namespace
}  // namespace fox
