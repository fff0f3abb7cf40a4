// WaitingQueue: the order of turns.
#include "engine/schedule/waiting_queue.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace fox {
namespace {

class WaitingQueueTest : public testing::Test {
 protected:
  Sequence* Add(uint64_t client, int64_t tokens, int32_t priority = 0, Seconds now = 0,
                int32_t max_tokens = 16) {
    Request request;
    request.id = sequences_.size();
    request.client = client;
    request.priority = priority;
    request.prompt.assign(static_cast<size_t>(tokens), 1);
    request.stop.max_tokens = max_tokens;
    const auto order = static_cast<int64_t>(sequences_.size());
    sequences_.push_back(
        std::make_unique<Sequence>(std::move(request), options_, 10000, order, now));
    Sequence* sequence = sequences_.back().get();
    sequence->place = order;
    sequence->state = SequenceState::kWaiting;
    queue_.Enter(*sequence);
    queue_.Add(sequence, now);
    queue_.Check();
    return sequence;
  }
  // The clients of the next turns.
  std::vector<uint64_t> Turns(int count, Seconds now = 0) {
    std::vector<uint64_t> clients;
    for (int i = 0; i < count; ++i) {
      Sequence* next = queue_.Next(now);
      if (next == nullptr) break;
      queue_.Start(next, now);
      clients.push_back(next->request.client);
    }
    return clients;
  }
  using Clients = std::vector<uint64_t>;

  EngineOptions options_;
  WaitingQueue queue_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(WaitingQueueTest, GeneratedTokensAreCharged) {
  Sequence* first = Add(1, 10);
  EXPECT_EQ(Turns(1), Clients{1});
  for (int i = 0; i < 5; ++i) Add(2, 10);
  for (int i = 0; i < 10; ++i) first->Append({1, 0, 0, {}});
  queue_.Stop(first);
  for (int i = 0; i < 2; ++i) Add(1, 10);
  EXPECT_EQ(Turns(6), (Clients{2, 2, 2, 2, 2, 1}));
}

TEST_F(WaitingQueueTest, StepsOfMasksAreCharged) {
  Sequence* first = Add(1, 10);
  EXPECT_EQ(Turns(1), Clients{1});
  for (int i = 0; i < 5; ++i) Add(2, 10);
  first->all_mask_steps = 40 * kMaskStepsPerToken;
  queue_.Stop(first);
  for (int i = 0; i < 2; ++i) Add(1, 10);
  EXPECT_EQ(Turns(6), (Clients{2, 2, 2, 2, 2, 1}));
}

TEST_F(WaitingQueueTest, ANewcomerOwesAndIsOwedNothing) {
  for (int i = 0; i < 50; ++i) Add(1, 10);
  Turns(40);
  for (int i = 0; i < 5; ++i) Add(2, 10);
  const Clients turns = Turns(10);
  EXPECT_EQ(std::count(turns.begin(), turns.end(), 2u), 5);
  EXPECT_EQ(std::count(turns.begin(), turns.begin() + 4, 1u), 2);
}

// Forty clients with expensive requests came before a client that sends cheap ones again and again.
TEST_F(WaitingQueueTest, AClientWithCheapRequestsComesFirstForItsShare) {
  for (uint64_t client = 1; client <= 40; ++client) Add(client, 3000);
  Sequence* small = Add(100, 10);
  EXPECT_EQ(queue_.Next(0), small);
  int64_t small_turns = 0;
  while (queue_.Next(0) == small) {
    queue_.Start(small, 0);
    queue_.Leave(*small);
    small = Add(100, 10);
    ++small_turns;
  }
  // By then each of the forty-one clients is due 2,048 tokens, the difference of the costs.
  EXPECT_NEAR(static_cast<double>(small_turns * 10), 41 * 2048, 100);
}

TEST_F(WaitingQueueTest, TheWorkAheadDependsOnTheClient) {
  ServiceTimes times;
  for (int i = 0; i < 100; ++i) Add(1, 10);
  EXPECT_EQ(queue_.Ahead(1, 10, 0, times).requests, 100);
  EXPECT_EQ(queue_.Ahead(2, 10, 0, times).requests, 1);
  EXPECT_EQ(queue_.Ahead(2, 10, 0, times).prefill_tokens, 10);
  EXPECT_EQ(queue_.All(times).prefill_tokens, 1000);
}

}  // namespace
}  // namespace fox
