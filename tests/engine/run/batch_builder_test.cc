// BatchBuilder over the CPU's memory: which rows are sampled from, and how.
#include "engine/run/batch_builder.h"

#include <cstddef>
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

TEST(BatchBuilderTest, SampleRowsHoldTheSamplePlan) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 4);
  StepPlan plan;
  plan.sequences.push_back(Planned(2, {5, 6, 7}, {0, 2}));  // for the host
  plan.sequences.push_back(Planned(1, {8, 9}, {1}));
  SampleRow& sample = plan.sequences.back().sample.emplace();
  sample.temperature = 0.5f;
  sample.top_p = 0.75f;
  sample.min_p = 0.25f;
  sample.top_k = 11;
  sample.logprobs = 3;
  sample.seed = 12;
  sample.position = 13;
  sample.logits_processor = {true, true, 2.0f, 1.5f, 0.125f, 14};
  std::vector<std::byte> staging(builder.bytes());
  builder.Build(plan, 0, staging.data(), nullptr);
  ASSERT_EQ(builder.num_logit_rows(), 3);
  EXPECT_EQ(builder.logit_rows()[2], 4);
  const SampleRow* rows = builder.sample_rows();
  EXPECT_EQ(rows[0].slot, -1);
  EXPECT_EQ(rows[1].slot, -1);
  const SampleRow& row = rows[2];
  EXPECT_EQ(row.slot, 1);
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_p, 0.75f);
  EXPECT_EQ(row.min_p, 0.25f);
  EXPECT_EQ(row.top_k, 11);
  EXPECT_EQ(row.logprobs, 3);
  EXPECT_EQ(row.seed, 12u);
  EXPECT_EQ(row.position, 13u);
  EXPECT_TRUE(row.logits_processor.on);
  EXPECT_TRUE(row.logits_processor.only_allowed);
  EXPECT_EQ(row.logits_processor.repetition_penalty, 2.0f);
  EXPECT_EQ(row.logits_processor.presence_penalty, 1.5f);
  EXPECT_EQ(row.logits_processor.frequency_penalty, 0.125f);
  EXPECT_EQ(row.logits_processor.stops_from, 14u);
}

TEST(BatchBuilderTest, PaddingIsNotSampledFrom) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 4);
  StepPlan plan;
  plan.sequences.push_back(Planned(3, {kLastSampledToken}, {0}));
  plan.sequences.back().sample.emplace().logits_processor.on = true;
  std::vector<std::byte> staging(builder.bytes());
  builder.Build(plan, 4, staging.data(), nullptr);
  ASSERT_EQ(builder.batch().num_seqs, 4);
  ASSERT_EQ(builder.num_logit_rows(), 4);
  EXPECT_EQ(builder.sample_rows()[0].slot, 3);
  EXPECT_TRUE(builder.sample_rows()[0].logits_processor.on);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(builder.batch().slot[i], -1);
    EXPECT_EQ(builder.sample_rows()[i].slot, -1);
    EXPECT_FALSE(builder.sample_rows()[i].logits_processor.on);
  }
}

TEST(BatchBuilderTest, SmallBatchesAreFewShortSingleRows) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 8);
  std::vector<std::byte> staging(builder.bytes());
  const auto small = [&](int seqs, int64_t longest, size_t rows, int64_t padded) {
    StepPlan plan;
    for (int i = 0; i < seqs; ++i) {
      plan.sequences.push_back(Planned(i, {1}, {0}));
    }
    plan.sequences.back().token_ids.resize(rows, 1);
    plan.sequences.back().position = longest - static_cast<int64_t>(rows);
    builder.Build(plan, padded, staging.data(), nullptr);
    return builder.batch().small;
  };
  EXPECT_TRUE(small(1, 1, 1, 1));
  EXPECT_TRUE(small(3, kSmallBatchTokens, 1, kSmallBatchRows));
  EXPECT_FALSE(small(3, kSmallBatchTokens + 1, 1, kSmallBatchRows));
  EXPECT_FALSE(small(kSmallBatchRows + 1, 9, 1, 0));
  EXPECT_FALSE(small(2, 9, 1, kSmallBatchRows + 1));
  EXPECT_FALSE(small(2, 9, 2, 0));
}

TEST(BatchBuilderTest, MaxTokensAreThoseOfTheLongestSequence) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 8);
  std::vector<std::byte> staging(builder.bytes());
  StepPlan plan;
  for (const int64_t position : {7, 900, 30}) {
    plan.sequences.push_back(Planned(0, {1}, {0}));
    plan.sequences.back().position = position;
  }
  plan.sequences.back().token_ids.resize(5, 1);
  builder.Build(plan, 0, staging.data(), nullptr);
  EXPECT_EQ(builder.batch().max_tokens, 901);
  plan.sequences.back().position = 897;
  builder.Build(plan, 0, staging.data(), nullptr);
  EXPECT_EQ(builder.batch().max_tokens, 902);
}

TEST(BatchBuilderTest, SequencesOfOneTokenAreDecodes) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 8);
  std::vector<std::byte> staging(builder.bytes());
  const auto decodes = [&](const std::vector<size_t>& rows, int64_t padded) {
    StepPlan plan;
    for (const size_t count : rows) {
      plan.sequences.push_back(Planned(0, std::vector<int32_t>(count, 1), {}));
    }
    builder.Build(plan, padded, staging.data(), nullptr);
    EXPECT_EQ(builder.batch().all_decodes(), builder.batch().num_rows == builder.batch().num_seqs);
    return builder.batch().num_decodes;
  };
  EXPECT_EQ(decodes({1, 1, 1}, 0), 3);
  EXPECT_EQ(decodes({1, 1, 1}, 8), 8);
  EXPECT_EQ(decodes({1, 1, 3, 2}, 0), 2);
  EXPECT_EQ(decodes({5}, 0), 0);
  EXPECT_DEATH(decodes({1, 2, 1}, 0), "");
}

// One copy of the report brings the pool's count and fault, which no Build touches.
TEST(BatchBuilderTest, FreePagesLieInTheReport) {
  CpuOps ops({DType::kF32, true, 1});
  BatchBuilder builder(ops, 16, 8, 16, 4);
  *builder.outputs().free_pages = 77;
  *builder.outputs().pool_fault = PoolFault::kTableEnd;
  StepPlan plan;
  plan.sequences.push_back(Planned(1, {8, 9}, {1}));
  std::vector<std::byte> staging(builder.bytes(), std::byte{0xff});
  builder.Build(plan, 0, staging.data(), nullptr);
  std::vector<std::byte> copy(builder.output_buffer(),
                              builder.output_buffer() + builder.output_bytes());
  EXPECT_EQ(*builder.OutputsAt(copy.data()).free_pages, 77);
  copy.resize(builder.pool_bytes());
  EXPECT_EQ(*builder.OutputsAt(copy.data()).free_pages, 77);
  EXPECT_EQ(*builder.OutputsAt(copy.data()).pool_fault, PoolFault::kTableEnd);
}

}  // namespace
}  // namespace fox
