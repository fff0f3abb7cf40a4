// StepReadback over the CPU's memory: where rows of logits go, and counters over steps.
#include "engine/run/step_readback.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

constexpr int32_t kVocab = 3;

PlannedSequence Planned(int32_t slot, int64_t position, int64_t count,
                        std::vector<int32_t> logit_rows) {
  PlannedSequence planned;
  planned.slot = slot;
  planned.position = position;
  planned.token_ids.assign(static_cast<size_t>(count), 1);
  planned.logit_rows = std::move(logit_rows);
  return planned;
}

class StepReadbackTest : public ::testing::Test {
 protected:
  StepReadbackTest() {
    limits_.lists_per_slot = 2;
    limits_.vocab_size = kVocab;
    const StepOutputs& out = batch_.outputs();
    *out.free_pages = 77;
  }

  // Writes outputs as a step of the plan would, and returns the result made of them.
  StepResult Run(const StepPlan& plan, const MatrixView& logits, int64_t bucket = 0) {
    readback_.Begin(plan, /*row_each=*/bucket > 0);
    if (!plan.sequences.empty()) {
      batch_.Build(plan, bucket, readback_.staging(), nullptr);
      const StepOutputs& out = batch_.outputs();
      for (size_t i = 0; i < plan.sequences.size(); ++i) {
        out.blocks_total[i] = 10;
        out.blocks_pruned[i] = 4;
        out.pages_evicted[i] = 1;
        out.max_log_evicted_mass[i] = -20.0 - static_cast<double>(i);
        out.lost_mass[i].Add(-30.0 - static_cast<double>(i), -25);
      }
      out.sampled[0].id = 2;
      out.sampled[0].logprob = -0.5f;
      out.sampled[0].rank = 1;
      out.sampled[0].top_ids[0] = 2;
      out.sampled[0].top_logprobs[0] = -0.5f;
    }
    readback_.Enqueue(logits, PagedKv());
    readback_.Wait();
    return readback_.Deliver(limits_, &slots_);
  }

  CpuOps ops_{{DType::kF32, true, 1}};
  BatchBuilder batch_{ops_, 512, 8, 16, 4};
  StepReadback readback_{ops_, batch_};
  ExecutorLimits limits_;
  std::vector<AcpStats> slots_ = std::vector<AcpStats>(4);
};

TEST_F(StepReadbackTest, LogitsGoToTheirSequencesAndSamplesToTheirs) {
  std::vector<double> values = {0, 1, 2, 10, 11, 12, 20, 21, 22};
  StepPlan plan;
  plan.sequences.push_back(Planned(0, 0, 1, {0}));
  plan.sequences.back().sample.emplace().logprobs = 1;
  plan.sequences.push_back(Planned(1, 0, 5, {}));
  plan.sequences.push_back(Planned(2, 0, 2, {0, 1}));
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    SCOPED_TRACE(SizeOf(dtype));
    std::vector<float> narrow(values.begin(), values.end());
    void* const data = dtype == DType::kF64 ? static_cast<void*>(values.data()) : narrow.data();
    const StepResult result = Run(plan, MatrixView{data, dtype, 3, kVocab, kVocab});
    ASSERT_EQ(result.logits.size(), 3u);
    EXPECT_EQ(result.logits[0], nullptr);
    EXPECT_EQ(result.logits[1], nullptr);
    ASSERT_NE(result.logits[2], nullptr);
    EXPECT_EQ(result.logits[2][0], 10.0f);
    EXPECT_EQ(result.logits[2][5], 22.0f);
    ASSERT_TRUE(result.sampled[0].ok());
    EXPECT_EQ(result.sampled[0]->id, 2);
    ASSERT_EQ(result.sampled[0]->top.size(), 1u);
    EXPECT_EQ(result.sampled[0]->top[0].logprob, -0.5f);
    EXPECT_EQ(result.free_pages, 77);
  }
}

// The second sequence replays a token: the batch of a graph has a row for it, which is not read.
TEST_F(StepReadbackTest, PaddingRowsAreSkipped) {
  std::vector<float> values = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32};
  StepPlan plan;
  plan.sequences.push_back(Planned(0, 9, 1, {0}));
  plan.sequences.back().sample.emplace().logprobs = 1;
  plan.sequences.push_back(Planned(1, 5, 1, {}));
  plan.sequences.push_back(Planned(2, 7, 1, {0}));
  const StepResult result =
      Run(plan, MatrixView{values.data(), DType::kF32, 4, kVocab, kVocab}, /*bucket=*/4);
  EXPECT_EQ(batch_.num_logit_rows(), 4);
  EXPECT_EQ(batch_.logit_rows()[1], 1);
  EXPECT_EQ(batch_.sample_rows()[1].slot, -1);
  EXPECT_EQ(result.logits[0], nullptr);
  EXPECT_EQ(result.logits[1], nullptr);
  ASSERT_NE(result.logits[2], nullptr);
  EXPECT_EQ(result.logits[2][0], 20.0f);
  EXPECT_EQ(result.sampled[0]->id, 2);
}

// Rows that the backend sampled from stay there: beside 256 of them an audit's rows are few.
TEST_F(StepReadbackTest, OnlyRowsForTheHostAreCopied) {
  std::vector<float> values(6 * kVocab);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  StepPlan plan;
  for (const int slot : {0, 1, 2}) plan.sequences.push_back(Planned(slot, 0, 1, {0}));
  plan.sequences[2].sample.emplace();
  plan.sequences.push_back(Planned(3, 0, 3, {0, 1, 2}));
  const StepResult result = Run(plan, MatrixView{values.data(), DType::kF32, 6, kVocab, kVocab});
  EXPECT_EQ(result.logits[1], result.logits[0] + kVocab);
  EXPECT_EQ(result.logits[2], nullptr);
  EXPECT_EQ(result.logits[3], result.logits[1] + kVocab);
  EXPECT_EQ(std::vector<float>(result.logits[0], result.logits[3]),
            std::vector<float>(values.begin(), values.begin() + 2 * kVocab));
  EXPECT_EQ(std::vector<float>(result.logits[3], result.logits[3] + 3 * kVocab),
            std::vector<float>(values.begin() + 3 * kVocab, values.end()));
}

TEST_F(StepReadbackTest, CountersGrowUntilTheSlotIsReleased) {
  StepPlan plan;
  plan.sequences.push_back(Planned(3, 0, 130, {}));
  const StepResult result = Run(plan, {});
  EXPECT_EQ(result.lost_mass[0].max_log, -30);
  EXPECT_EQ(result.lost_mass[0].max_log_shift, -25);
  AcpStats stats = result.stats[0];
  EXPECT_EQ(stats.pages_allocated, 6);  // three page rows of two lists
  EXPECT_EQ(stats.pages_evicted, 1);
  EXPECT_EQ(stats.live_pages(), 5);
  EXPECT_EQ(stats.peak_pages, 5);
  EXPECT_EQ(stats.max_log_evicted_mass, -20);

  plan.sequences[0].position = 130;
  stats = Run(plan, {}).stats[0];
  EXPECT_EQ(stats.blocks_total, 20);
  EXPECT_EQ(stats.blocks_pruned, 8);
  EXPECT_EQ(stats.pages_allocated, 10);
  EXPECT_EQ(stats.pages_evicted, 2);
  EXPECT_EQ(stats.peak_pages, 8);

  StepPlan release;
  release.release_slots = {3};
  EXPECT_TRUE(Run(release, {}).stats.empty());
  plan.sequences[0].position = 0;
  stats = Run(plan, {}).stats[0];
  EXPECT_EQ(stats.blocks_total, 10);
  EXPECT_EQ(stats.pages_allocated, 6);
}

// Counters of pages go where the pages go; counters of blocks stay with their slot.
TEST_F(StepReadbackTest, CountersOfPagesGoFromSlotToSnapshotToSlot) {
  limits_.snapshot_slots = 1;
  StepPlan plan;
  plan.sequences.push_back(Planned(0, 0, 130, {}));
  StepResult result = Run(plan, {});
  ASSERT_NE(result.sole_pages, nullptr);
  StepPlan next;
  next.snapshots = {{0, 3, 128}};
  next.release_slots = {0};
  next.starts = {{3, 1, 128}};
  next.sequences.push_back(Planned(1, 128, 1, {}));
  batch_.outputs().sole_pages[3] = 4;
  result = Run(next, {});
  ASSERT_EQ(result.snapshots.size(), 1u);
  EXPECT_EQ(result.snapshots[0].live_pages(), 3);
  EXPECT_EQ(result.snapshots[0].max_log_evicted_mass, -20);
  EXPECT_EQ(result.sole_pages[3], 4);
  const AcpStats& stats = result.stats[0];
  EXPECT_EQ(stats.pages_allocated, 6);  // the page row that it begins, too
  EXPECT_EQ(stats.pages_evicted, 2);
  EXPECT_EQ(stats.pages_found_evicted, 1);
  EXPECT_EQ(stats.max_log_evicted_mass, -20);
  EXPECT_EQ(stats.blocks_total, 10);
  StepPlan drop;
  drop.drop_snapshots = {3};
  Run(drop, {});
  EXPECT_EQ(slots_[3].pages_allocated, 0);
  EXPECT_EQ(slots_[0].pages_allocated, 0);
}

// The pages that an image has not count as found evicted.
TEST_F(StepReadbackTest, ALoadedSnapshotHasTheCountersOfItsImage) {
  limits_.snapshot_slots = 1;
  StepPlan plan;
  plan.loads = {{3, 0, /*pages=*/3, /*tokens=*/128, /*max_log_evicted_mass=*/-15}};
  plan.starts = {{3, 1, 128}};
  plan.sequences.push_back(Planned(1, 128, 1, {}));
  const AcpStats stats = Run(plan, {}).stats[0];
  EXPECT_EQ(slots_[3].live_pages(), 3);
  EXPECT_EQ(slots_[3].pages_evicted, 1);
  EXPECT_EQ(stats.pages_allocated, 6);
  EXPECT_EQ(stats.pages_evicted, 2);
  EXPECT_EQ(stats.pages_found_evicted, 1);
  EXPECT_EQ(stats.max_log_evicted_mass, -15);
}

TEST_F(StepReadbackTest, ARowThatIsNotFiniteIsAnErrorOfItsSequence) {
  StepPlan plan;
  plan.sequences.push_back(Planned(0, 0, 1, {0}));
  plan.sequences.back().sample.emplace();
  for (const SampleStatus status : {SampleStatus::kNotFinite, SampleStatus::kAllMasked}) {
    SCOPED_TRACE(static_cast<int>(status));
    batch_.outputs().sampled[0].status = status;
    EXPECT_EQ(Run(plan, {}).sampled[0].status().code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace fox
