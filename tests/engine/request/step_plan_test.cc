// StepPlan::DebugString: one line with all moves and sequences, and without a token.
#include "engine/request/step_plan.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(StepPlanTest, IsOneLineWithoutTokens) {
  StepPlan plan;
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.DebugString(), "release []");
  plan.saves.push_back({5, 1, 7, 128});
  plan.snapshots.push_back({4, 3, 128});
  plan.release_slots = {4, 1};
  plan.loads.push_back({6, 0, 9, 192});
  plan.starts.push_back({3, 1, 64});
  PlannedSequence& prompt = plan.sequences.emplace_back();
  prompt.id = 7;
  prompt.slot = 2;
  prompt.position = 64;
  prompt.token_ids = {31337, 31338, 31339};
  PlannedSequence& decode = plan.sequences.emplace_back();
  decode.id = 8;
  decode.slot = 1;
  decode.position = 100;
  decode.token_ids = {kLastSampledToken};
  decode.logit_rows = {0};
  decode.sample.emplace().logits_processor.on = true;
  plan.penalty_state.push_back({1, {{5, {}}, {6, {}}}});
  EXPECT_FALSE(plan.empty());
  EXPECT_EQ(plan.num_tokens(), 4);
  EXPECT_EQ(plan.DebugString(),
            "save 5 to 1; snapshot 3 of 4 at 128; release [4 1]; load 6 from 0 at 192; slot 1 from "
            "3 at 64; id 7 slot 2 tokens 64+3 rows 0; id 8 slot 1 tokens 100+1 rows 1 sample "
            "processed fed; states of slot 1: 2");
}

}  // namespace
}  // namespace fox
