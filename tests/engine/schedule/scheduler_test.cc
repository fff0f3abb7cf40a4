// The scheduler's rules one by one, on sequences made by hand.
#include "engine/schedule/scheduler.h"

#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

TEST_F(SchedulerTest, ChunksEndAtPagesAndShareAStep) {
  Start();
  Add(300);
  Add(100);
  Schedule schedule = Step();  // 256 is a page end
  EXPECT_EQ(Chunks(schedule), (Sizes{256}));
  EXPECT_TRUE(schedule.plan.sequences[0].logit_rows.empty());
  schedule = Step();
  EXPECT_EQ(Chunks(schedule), (Sizes{100, 44}));  // the whole prompt first
  EXPECT_EQ(schedule.plan.sequences[1].position, 256);
  EXPECT_EQ(schedule.plan.sequences[1].logit_rows, std::vector<int32_t>{43});
  limits_.max_num_batched_tokens = 100;
  sequences_.clear();
  Start();
  Add(300);
  EXPECT_EQ(Chunks(Step()), Sizes{64});  // 100 is cut down to a page end
}

TEST_F(SchedulerTest, PriorityThenArrival) {
  limits_.max_num_seqs = 2;
  Start();
  Add(5, 3);
  Add(5, 1);
  Add(5, 1);
  EXPECT_EQ(Ids(Step()), (IdList{1, 2}));
  Step();
  scheduler_->Remove(sequences_[1].get());
  const Schedule schedule = Step();
  EXPECT_EQ(schedule.plan.release_slots, std::vector<int32_t>{0});
  EXPECT_EQ(Ids(schedule), (IdList{2, 0}));
  EXPECT_EQ(schedule.plan.sequences[1].slot, 0);  // used again in the same plan
}

TEST_F(SchedulerTest, AdmissionKeepsHeadroom) {
  limits_.num_pages = 10;
  Start();
  Add(64);  // 2 pages, and 2 for half of an answer of 64
  Add(64);  // likewise, and 2 of headroom for the first
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  sequences_.clear();
  limits_.num_pages = 9;
  Start();
  Add(64);
  Add(64);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerTest, WhoFindsNoRoomIsOvertakenForAWhile) {
  limits_.num_pages = 30;
  limits_.max_num_seqs = 8;
  Start();
  Add(64);
  Sequence* first = Add(400);
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  Sequence* second = Add(600);
  Add(5);
  EXPECT_EQ(Ids(Step(1.0)), (IdList{0, 3, 1}));  // the short one finds room
  EXPECT_EQ(second->blocked_since, 1.0);
  Add(5);
  const Schedule held = Step(1.0 + kStarvation);
  EXPECT_THAT(Ids(held), testing::Not(testing::Contains(4)));
  scheduler_->Remove(first);
  EXPECT_THAT(Ids(Step(7.0)), testing::Contains(second->request.id));
}

// Each short one wants a row for each of its tokens, too, and ends at its first token.
TEST_F(SchedulerTest, ScoredPromptsDoNotStarveOneThatHasStarted) {
  limits_.num_pages = 1000;
  limits_.max_logit_rows = 16;
  Start();
  Sequence* patient = Add(400, 0, 0, 0);
  Step();
  int64_t steps = 0;
  for (; patient->produced() == 0 && steps < 1000; ++steps) {
    const std::vector<Sequence*> others = {Add(8, 0, 0, 0), Add(8, 0, 0, 0)};
    Step();
    for (Sequence* other : others) scheduler_->Remove(other);
  }
  EXPECT_LE(steps, 400 / 8);  // it has half of the rows
}

// Urgent prompts, each before it in the order and shorter, come on and on. Each ends at its first
// token.
TEST_F(SchedulerTest, UrgentPromptsDoNotStarveOneThatHasStarted) {
  limits_.num_pages = 1000;
  limits_.max_num_seqs = 3;
  limits_.max_num_batched_tokens = 128;
  Start();
  std::vector<Sequence*> urgent = {Add(200), Add(200), Add(200)};
  Step();
  Sequence* patient = Add(1000, 1);
  Seconds now = 0;
  int64_t urgent_tokens = 0;
  for (; patient->produced() == 0 && now < 100; now += 0.1) {
    while (urgent.size() < 4) urgent.push_back(Add(200, 0));
    const int64_t computed = patient->computed;
    const int64_t tokens = Step(now).plan.num_tokens();
    if (now > kStarvation) urgent_tokens += tokens - (patient->computed - computed);
    for (size_t i = urgent.size(); i-- > 0;) {
      if (urgent[i]->produced() == 0) continue;
      scheduler_->Remove(urgent[i]);
      urgent.erase(urgent.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  // Half of each step.
  EXPECT_LE(now, kStarvation + 0.1 * static_cast<double>(PagesFor(1000) + 2));
  EXPECT_GT(now, kStarvation);
  EXPECT_GT(urgent_tokens, 0);
}

TEST_F(SchedulerTest, ALongPromptAloneGoesChunkByChunkUntilThePoolIsFull) {
  limits_.num_pages = 5;  // two page rows of 64
  Start();
  Sequence* sequence = Add(500);
  EXPECT_EQ(Chunks(Step()), Sizes{128});
  const Schedule schedule = Step();
  EXPECT_EQ(schedule.ended.at(0).first, sequence);
  EXPECT_TRUE(schedule.plan.sequences.empty());
  EXPECT_EQ(schedule.plan.release_slots.size(), 1u);
}

TEST_F(SchedulerTest, PausedSequencesGiveUpTheirSeatsAndKeepTheirPages) {
  limits_.max_num_seqs = 1;
  limits_.num_slots = 2;
  Start();
  Sequence* paused = Add(10, 0, 4);
  for (int i = 0; i < 4; ++i) Step();
  ASSERT_TRUE(paused->paused());
  Sequence* other = Add(10, 7);
  EXPECT_EQ(Ids(Step()), IdList{1});
  EXPECT_EQ(scheduler_->paused(), 1);
  EXPECT_GE(paused->slot, 0);
  Acknowledge(paused, 1);  // not half of the window
  EXPECT_TRUE(paused->paused());
  Acknowledge(paused, 2);
  EXPECT_EQ(Ids(Step()), IdList{1});  // the only running slot is taken
  scheduler_->Remove(other);
  const Schedule schedule = Step();
  EXPECT_EQ(Ids(schedule), IdList{0});
  EXPECT_EQ(Chunks(schedule), Sizes{1});  // nothing is computed again
  EXPECT_EQ(paused->stats.preemptions, 0);
}

}  // namespace
}  // namespace fox
