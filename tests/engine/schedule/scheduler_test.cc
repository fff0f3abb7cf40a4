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

}  // namespace
}  // namespace fox
