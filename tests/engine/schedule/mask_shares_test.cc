// MaskShares: the masks of several clients over the steps.
#include "engine/schedule/mask_shares.h"

#include <map>

#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

constexpr int64_t kHeavy = 148'000;

class MaskSharesTest : public SchedulerTest {
 protected:
  MaskSharesTest() {
    limits_.num_pages = 1000;
    limits_.max_num_seqs = 16;
    Start();
  }
  // Adds sequences that decode, with masks of `mask_steps` steps each.
  void AddAll(uint64_t client, int count, int64_t mask_steps) {
    client_ = client;
    for (int i = 0; i < count; ++i) Add(5)->mask_steps = mask_steps;
  }
  // Makes `plans` plans. Counts each sequence's tokens, and returns the most steps of masks in a
  // plan.
  int64_t Run(int plans, std::map<RequestId, int>* tokens) {
    int64_t most = 0;
    for (int i = 0; i < plans; ++i) {
      const Schedule schedule = Step(now_ += 0.01);
      int64_t steps = 0;
      for (const Sequence* sequence : schedule.sequences) {
        steps += sequence->mask_steps;
        ++(*tokens)[sequence->request.id];
      }
      most = std::max(most, steps);
    }
    return most;
  }

  Seconds now_ = 1;
};

TEST_F(MaskSharesTest, AClientWithHeavyMasksTakesTurnsWithItself) {
  AddAll(1, 14, kHeavy);
  AddAll(2, 1, 0);
  std::map<RequestId, int> tokens;
  Run(30, &tokens);  // until all have started
  tokens.clear();
  EXPECT_LE(Run(100, &tokens), kMaskSteps + kHeavy);
  EXPECT_EQ(tokens[14], 100);  // in every step
  for (RequestId id = 0; id < 14; ++id) {
    EXPECT_NEAR(tokens[id], 100 * kMaskSteps / kHeavy / 14, 3) << id;  // ties go to the older
  }
}

TEST_F(MaskSharesTest, ClientsHaveEvenParts) {
  for (uint64_t client = 1; client <= 4; ++client) AddAll(client, 4, kHeavy);
  std::map<RequestId, int> tokens;
  Run(30, &tokens);
  tokens.clear();
  EXPECT_LE(Run(160, &tokens), kMaskSteps + 4 * kHeavy);
  for (RequestId id = 0; id < 16; ++id) {
    EXPECT_NEAR(tokens[id], 160 * kMaskSteps / kHeavy / 16, 3) << id;
  }
}

TEST_F(MaskSharesTest, AClientAloneAndCheapMasksDoNotWait) {
  std::map<RequestId, int> tokens;
  AddAll(1, 8, kHeavy);
  Run(20, &tokens);
  for (RequestId id = 0; id < 8; ++id) EXPECT_EQ(tokens[id], 20) << id;
  for (const auto& sequence : sequences_) sequence->mask_steps = kMaskStepsPerSequence;
  AddAll(2, 8, 0);
  tokens.clear();
  Run(20, &tokens);
  for (RequestId id = 0; id < 16; ++id) EXPECT_EQ(tokens[id], 20) << id;
}

// There is nothing to plan beside the masks, so one sequence gets a token in each step.
TEST_F(MaskSharesTest, AStepIsNeverEmpty) {
  AddAll(1, 2, 40 * kHeavy);
  AddAll(2, 2, 40 * kHeavy);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(Step(1 + 0.01 * i).plan.empty()) << i;
}

// A client in debt gets no new sequence started; other clients' sequences go on.
TEST_F(MaskSharesTest, NewSequencesWaitForTheirClientsTurn) {
  AddAll(1, 1, 0);
  Step(1);
  AddAll(2, 12, kHeavy);
  EXPECT_EQ(Step(1).sequences.size(), 4U);
  AddAll(3, 1, 0);
  EXPECT_EQ(Step(1).plan.sequences.back().id, 13U);
}

}  // namespace
}  // namespace fox
