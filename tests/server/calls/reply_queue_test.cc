// ReplyQueue: one write at a time, the end once and last, and what waits has a budget.
#include "server/calls/reply_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/fixtures/test_core.h"

namespace fox {
namespace {

// An endpoint that keeps texts of deltas, 100 bytes each, and takes them one by one in a stream.
class TextQueue final : public ReplyQueue {
 public:
  TextQueue(EngineThread& engine, CallBudget::Share* share, bool stream, size_t generations = 1)
      : ReplyQueue(engine), stream_(stream) {
    Expect(generations, stream, share);
  }

  absl::Status Say(const std::string& text, size_t generation = 0) {
    v1::GenerateDelta event;
    event.mutable_delta()->set_text(text);
    return Deliver(generation, std::move(event), generation + 1, /*tokens=*/1);
  }
  using ReplyQueue::Close;
  using ReplyQueue::Written;

  std::atomic<int> in_flight{0}, writes{0}, ends{0}, abandoned{0}, dropped{0};
  std::string written;
  absl::Status end;

 private:
  int64_t Keep(size_t, v1::GenerateDelta event, RequestId, int64_t) override {
    texts_.push_back(event.delta().text());
    return 100;
  }
  bool empty() const override { return texts_.empty(); }
  Taken Take() override {
    Taken taken;
    while (!texts_.empty()) {
      bytes_ += texts_.front();
      texts_.erase(texts_.begin());
      taken.kept += 100;
      if (stream_) break;
    }
    taken.bytes = taken.kept;
    return taken;
  }
  void Drop() override {
    ++dropped;
    texts_.clear();
  }
  void Write() override {
    EXPECT_EQ(++in_flight, 1);
    ++writes;
    written += std::exchange(bytes_, {});
  }
  void End(const absl::Status& failed) override {
    EXPECT_EQ(in_flight, 0);
    ++ends;
    end = failed;
    written += std::exchange(bytes_, {});
  }
  void Abandon(const absl::Status&) override { ++abandoned; }

  const bool stream_;
  std::vector<std::string> texts_;
  std::string bytes_;
};

class ReplyQueueTest : public ::testing::Test {
 protected:
  void Written(TextQueue* queue) {
    --queue->in_flight;
    queue->Written();
  }

  TestCore test_;
  CallBudget budget_{/*max_calls=*/8, /*max_bytes=*/64 << 10};
  CallBudget::Share share_ = *budget_.Take(/*client=*/1, /*bytes=*/0);
};

TEST_F(ReplyQueueTest, AStreamHasOneWriteInFlightAndEndsWithTheLast) {
  TextQueue queue(*test_.engine, &share_, /*stream=*/true);
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(queue.Say(text).ok());
  queue.Done(absl::OkStatus());
  EXPECT_EQ(queue.written, "a");
  Written(&queue);
  EXPECT_EQ(queue.written, "ab");
  EXPECT_EQ(queue.ends, 0);
  Written(&queue);
  EXPECT_EQ(queue.written, "abc");
  EXPECT_EQ(queue.writes, 2);
  EXPECT_EQ(queue.ends, 1);
  EXPECT_TRUE(queue.end.ok());
}

TEST_F(ReplyQueueTest, OneAnswerIsWrittenWhenAllGenerationsAreDone) {
  TextQueue queue(*test_.engine, &share_, /*stream=*/false, /*generations=*/2);
  EXPECT_TRUE(queue.Say("a", 0).ok());
  queue.Done(absl::OkStatus());
  EXPECT_TRUE(queue.Say("b", 1).ok());
  EXPECT_EQ(queue.written, "");
  queue.Done(absl::OkStatus());
  EXPECT_EQ(queue.written, "ab");
  EXPECT_EQ(queue.writes, 0);
  EXPECT_EQ(queue.ends, 1);
}

TEST_F(ReplyQueueTest, TheFirstFailureIsTheEndAndDropsWhatWaits) {
  TextQueue queue(*test_.engine, &share_, /*stream=*/true, /*generations=*/2);
  EXPECT_TRUE(queue.Say("a").ok());
  EXPECT_TRUE(queue.Say("b").ok());  // waits for the write of "a"
  queue.Done(absl::DeadlineExceededError("late"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(queue.Say("c", 1)));
  queue.Close(absl::CancelledError("gone"));
  Written(&queue);
  EXPECT_EQ(queue.ends, 0);  // the second generation runs
  queue.Done(absl::CancelledError("gone"));
  EXPECT_EQ(queue.ends, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(queue.end));
  EXPECT_EQ(queue.written, "a");
  EXPECT_EQ(queue.dropped, 1);
}

TEST_F(ReplyQueueTest, WhatWaitsHasABudgetAndAHangingWriteIsAbandoned) {
  TextQueue queue(*test_.engine, &share_, /*stream=*/true);
  absl::Status status;
  int said = 0;
  for (; status.ok() && said < 10000; ++said) status = queue.Say("a");
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_GT(said, 300);  // half of the budget is one client's
  EXPECT_EQ(queue.abandoned, 1);
  EXPECT_LT(budget_.bytes(), 10 << 10);  // all but the write in flight was given back
  queue.Close(absl::CancelledError("gone"));
  Written(&queue);
  queue.Done(status);
  EXPECT_TRUE(absl::IsResourceExhausted(queue.end));
  EXPECT_EQ(queue.writes, 1);
}

TEST_F(ReplyQueueTest, GenerationsOnManyThreadsLoseAndRepeatNothing) {
  constexpr size_t kGenerations = 4;
  constexpr int kTexts = 500;
  CallBudget::Share share;  // holds anything
  TextQueue queue(*test_.engine, &share, /*stream=*/true, kGenerations);
  std::vector<std::thread> lanes;
  for (size_t i = 0; i < kGenerations; ++i) {
    lanes.emplace_back([&queue, i] {
      for (int n = 0; n < kTexts; ++n) EXPECT_TRUE(queue.Say("x", i).ok());
      queue.Done(absl::OkStatus());
    });
  }
  while (queue.ends == 0) {
    if (queue.in_flight > 0) Written(&queue);
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(queue.written.size(), kGenerations * kTexts);
  EXPECT_EQ(queue.ends, 1);
}

}  // namespace
}  // namespace fox
