// DeliveryPool: each lane keeps its order, a flush hands over everything with one time, and what is
// queued is delivered when the pool goes away.
#include "engine/delivery_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <set>
#include <utility>

namespace fox {
namespace {

class Recorder final : public SubmissionListener {
 public:
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput output, Seconds when) override {
    received.emplace_back(output.id, when);
    threads.insert(std::this_thread::get_id());
  }
  std::vector<std::pair<RequestId, Seconds>> received;
  std::set<std::thread::id> threads;
};

Delivery To(const std::shared_ptr<Recorder>& recorder, RequestId id, Seconds when = 0) {
  RequestOutput output;
  output.id = id;
  return {recorder, std::move(output), when};
}

TEST(DeliveryPoolTest, EachCallStaysInOrderOnOneThread) {
  constexpr size_t kCalls = 6;
  std::vector<std::shared_ptr<Recorder>> calls;
  {
    DeliveryPool pool(3);
    std::vector<size_t> lanes;
    for (size_t i = 0; i < kCalls; ++i) {
      calls.push_back(std::make_shared<Recorder>());
      lanes.push_back(pool.NextLane());
    }
    EXPECT_EQ(std::set<size_t>(lanes.begin(), lanes.end()).size(), 3u);
    for (RequestId step = 0; step < 1000; ++step) {
      for (size_t i = 0; i < kCalls; ++i) pool.Stage(lanes[i], To(calls[i], step));
      pool.Flush(static_cast<Seconds>(step));
    }
  }
  std::set<std::thread::id> threads;
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& call = calls[i];
    ASSERT_EQ(call->received.size(), 1000u);
    for (RequestId step = 0; step < 1000; ++step) {
      EXPECT_EQ(call->received[step], std::make_pair(step, static_cast<Seconds>(step))) << step;
    }
    EXPECT_EQ(call->threads.size(), 1u);
    threads.merge(call->threads);
    EXPECT_EQ(call.use_count(), 1);  // let go of
  }
  EXPECT_EQ(threads.size(), 3u);
}

TEST(DeliveryPoolTest, StagedOutputsWaitForTheFlushAndPostedOnesDoNot) {
  const auto call = std::make_shared<Recorder>();
  {
    DeliveryPool pool(1);
    pool.Stage(0, To(call, 2));
    pool.Post(0, To(call, 1, 5));
    pool.Flush(7);
  }
  const std::vector<std::pair<RequestId, Seconds>> expected = {{1, 5}, {2, 7}};
  EXPECT_EQ(call->received, expected);
}

TEST(DeliveryPoolTest, WithoutThreadsTheOwnerRunsTheLanes) {
  const auto call = std::make_shared<Recorder>();
  {
    DeliveryPool pool(2, /*has_threads=*/false);
    EXPECT_FALSE(pool.RunLane(0));
    pool.Post(1, To(call, 1, 5));
    EXPECT_FALSE(pool.RunLane(0));
    EXPECT_TRUE(pool.RunLane(1));
    EXPECT_EQ(call->received.size(), 1u);
    EXPECT_FALSE(pool.RunLane(1));
    pool.Post(0, To(call, 2, 6));
  }
  EXPECT_EQ(call->received.size(), 2u);  // the rest at the end
}

class Blocker final : public SubmissionListener {
 public:
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput, Seconds) override { gate.get_future().wait(); }
  std::promise<void> gate;
};

TEST(DeliveryPoolTest, TellsHowLongALaneIsStuck) {
  DeliveryPool pool(2);
  EXPECT_EQ(pool.StuckFor(), 0.0);
  const auto blocker = std::make_shared<Blocker>();
  pool.Post(1, {blocker, RequestOutput()});
  while (pool.StuckFor() < 0.02) std::this_thread::yield();
  blocker->gate.set_value();
  while (pool.StuckFor() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace fox
