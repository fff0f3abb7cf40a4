// Which requests enter the queue, which are displaced, and which the engine ends by itself.
#include "tests/engine/engine_fixture.h"

namespace fox {
namespace {

class EngineRequestsTest : public EngineTest {};

std::vector<Request> Samples(const std::vector<RequestId>& ids, size_t prompt,
                             uint64_t client = 0) {
  std::vector<Request> requests;
  for (const RequestId id : ids) {
    requests.push_back(MakeRequest(id, prompt));
    requests.back().client = client;
  }
  return requests;
}

TEST_P(EngineRequestsTest, WhoHoldsLessThanItsShareDisplacesTheNewestOfWhoHoldsMost) {
  FakeOptions fake = Roomy();
  fake.limits.max_num_seqs = 1;
  EngineOptions options;
  options.max_num_queued_reqs = 6;
  Start(fake, options);
  ASSERT_TRUE(engine_->Submit(Samples({1}, 5, 7), 0).ok());
  Step();  // runs
  ASSERT_TRUE(engine_->Submit(Samples({2, 3}, 5, 7), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({4, 5, 6}, 5, 7), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({7}, 5, 8), 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->Submit(Samples({8}, 5, 7), 0)));
  ASSERT_TRUE(engine_->Submit(Samples({9}, 5, 8), 0).ok());  // displaces 4, 5 and 6
  EXPECT_EQ(engine_->stats().rejected, 2);
  EXPECT_EQ(engine_->stats().waiting, 4);
  EXPECT_TRUE(engine_->HasWork());
  Step();
  for (const RequestId id : {RequestId{4}, RequestId{5}, RequestId{6}}) {
    EXPECT_TRUE(absl::IsResourceExhausted(received_[id].finish->status));
    EXPECT_TRUE(received_[id].tokens.empty());
  }
  // Three of six are its share.
  ASSERT_TRUE(engine_->Submit(Samples({10}, 5, 8), 0).ok());
  ASSERT_TRUE(engine_->Submit(Samples({11}, 5, 7), 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(engine_->Submit(Samples({12}, 5, 8), 0)));
  RunToEnd();
  EXPECT_EQ(engine_->stats().failed, 0);
  for (const RequestId id : {RequestId{1}, RequestId{2}, RequestId{7}, RequestId{11}}) {
    EXPECT_EQ(received_[id].tokens, Reference(MakeRequest(id)).tokens);
  }
}

// The machine slept with a step in flight: what it brings is the reader's only now.
TEST_P(EngineRequestsTest, NoReaderIsBlamedForATokenItHasNotBeenGiven) {
  EngineOptions options;
  options.stall_timeout = 30;
  Start(Roomy(), options);
  Request request = MakeRequest(1, 5, 50);
  request.flow_window = 1;
  ASSERT_TRUE(engine_->Submit(request, 0).ok());
  Step(0);
  const Seconds woken = GetParam().depth > 1 ? 100 : 0;  // else it has its token at once
  RunToEnd(woken);
  EXPECT_FALSE(received_[1].finish);
  EXPECT_EQ(received_[1].tokens.size(), 1u);
  EXPECT_EQ(engine_->NextDeadline(), woken + 30);
  Step(woken + 30);
  EXPECT_TRUE(absl::IsAborted(received_[1].finish->status));
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineRequestsTest,
                         testing::Values(Pipeline{1, false}, Pipeline{1, true}, Pipeline{2, false},
                                         Pipeline{2, true}, Pipeline{2, true, 128}),
                         PipelineName);

}  // namespace
}  // namespace fox
