// DecodeGraphs over a queue that only counts: steps that run, are captured, are replayed.
#include "engine/run/decode_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/null_queue.h"

namespace fox {
namespace {

using ::testing::ElementsAre;

class CountingQueue : public NullQueue {
 public:
  class CountingGraph : public Graph {
   public:
    explicit CountingGraph(CountingQueue& queue) : queue_(queue) {}
    void Launch(Stream) override { ++queue_.launches; }

   private:
    CountingQueue& queue_;
  };

  std::unique_ptr<Graph> Capture(Stream, const std::function<void()>& work) override {
    work();
    ++captures;
    if (fails) return nullptr;
    return std::make_unique<CountingGraph>(*this);
  }
  const char* error() const override { return fails ? "no graph" : nullptr; }

  int captures = 0, launches = 0;
  bool fails = false;
};

class DecodeGraphsTest : public ::testing::Test {
 protected:
  MatrixView Run(const DecodeShape& shape) {
    return graphs_.Run(shape, [this] {
      MatrixView logits;
      logits.rows = ++steps_;
      return logits;
    });
  }

  CountingQueue queue_;
  DecodeGraphs graphs_{queue_};
  int64_t steps_ = 0;
};

TEST_F(DecodeGraphsTest, RunsOnceThenIsCapturedThenReplayed) {
  EXPECT_EQ(Run({1, true}).rows, 1);
  EXPECT_EQ(queue_.captures, 0);
  EXPECT_EQ(Run({1, true}).rows, 2);
  EXPECT_EQ(queue_.captures, 1);
  EXPECT_EQ(queue_.launches, 1);  // capturing ran nothing
  for (int i = 2; i < 5; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(Run({1, true}).rows, 2);  // where the captured step leaves its logits
    EXPECT_EQ(queue_.launches, i);
  }
  EXPECT_EQ(steps_, 2);
}

TEST_F(DecodeGraphsTest, EveryShapeHasItsOwn) {
  for (const DecodeShape& shape : {DecodeShape{1, true}, {1, false}, {8, false}}) {
    SCOPED_TRACE(shape.bucket);
    Run(shape);
    EXPECT_EQ(Run(shape).rows, steps_);
  }
  EXPECT_EQ(queue_.captures, 3);
  EXPECT_EQ(Run({1, true}).rows, 2);
}

TEST_F(DecodeGraphsTest, AFailedCaptureLaunchesNothing) {
  Run({1, true});
  queue_.fails = true;
  Run({1, true});
  EXPECT_EQ(queue_.launches, 0);
}

TEST_F(DecodeGraphsTest, BucketsGrowByEightsThenByThirtyTwos) {
  const std::pair<int64_t, int64_t> cases[] = {{0, 1},   {1, 1},   {2, 2},   {3, 4},
                                               {4, 4},   {5, 8},   {8, 8},   {9, 16},
                                               {64, 64}, {65, 96}, {96, 96}, {97, 128}};
  for (const auto& [seqs, bucket] : cases) EXPECT_EQ(DecodeBucket(seqs), bucket) << seqs;
}

TEST_F(DecodeGraphsTest, ShapesAreThoseThatStepsCanHave) {
  // One sequence is small until it is long: two graphs. Each other bucket has one.
  EXPECT_THAT(DecodeShapes(9, 8193),
              ElementsAre(DecodeShape{1, true}, DecodeShape{1, false}, DecodeShape{2, false},
                          DecodeShape{4, false}, DecodeShape{8, false}, DecodeShape{16, false}));
  EXPECT_THAT(DecodeShapes(4, 131072), ElementsAre(DecodeShape{1, true}, DecodeShape{1, false},
                                                   DecodeShape{2, false}, DecodeShape{4, false}));
  EXPECT_THAT(DecodeShapes(5, 8192), ElementsAre(DecodeShape{1, true}, DecodeShape{2, false},
                                                 DecodeShape{4, false}, DecodeShape{8, false}));
}

}  // namespace
}  // namespace fox
