// PageDemand: the largest sum over time, by hand.
#include "engine/schedule/page_demand.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

PageDemand::Of Sequence(int64_t held, double expected, double tokens_left = 0,
                        double per_token = 0) {
  PageDemand::Of sequence;
  sequence.held = held;
  sequence.most = 1000;
  sequence.expected = expected;
  sequence.tokens_left = tokens_left;
  sequence.per_token = per_token;
  return sequence;
}

TEST(PageDemandTest, OneWantsWhatItIsExpectedTo) {
  EXPECT_EQ(PageDemand().With(Sequence(0, 7), 0), 7);
  EXPECT_EQ(PageDemand().With(Sequence(0, 7, 100, 0.5), 0), 57);
  EXPECT_EQ(PageDemand().With(Sequence(0, 7, 100, 0.5), 64), 25);
}

// The first ends after 10 tokens and leaves 100 pages: by then both have grown by 10. The other
// takes 90 more, fewer than that.
TEST(PageDemandTest, WhoEndsLeavesItsPagesToTheOthers) {
  PageDemand demand;
  demand.Add(Sequence(100, 0, 10, 1));
  EXPECT_EQ(demand.With(Sequence(50, 5, 100, 1), 0), 25);
  EXPECT_EQ(demand.With(Sequence(50, 5, 300, 1), 0), 205);  // then the second alone wants more
}

TEST(PageDemandTest, OrderDoesNotMatter) {
  const PageDemand::Of all[] = {Sequence(30, 1, 50, 0.5), Sequence(10, 2, 20, 1),
                                Sequence(60, 3, 90, 0.25)};
  for (int last = 0; last < 3; ++last) {
    PageDemand demand;
    for (int i = 0; i < 3; ++i) {
      if (i != last) demand.Add(all[i]);
    }
    // After 20 tokens: 6 + 1.75 * 20; after 50: 4 + 0.75 * 50 - 10; after 90: less.
    EXPECT_EQ(demand.With(all[last], 0), 41) << last;
  }
}

TEST(PageDemandTest, DeviationsAreAddedAsOfIndependentOnes) {
  PageDemand demand;
  PageDemand::Of sequence = Sequence(0, 10);
  sequence.deviation = 3;
  for (int i = 0; i < 15; ++i) demand.Add(sequence);
  EXPECT_EQ(demand.With(sequence, 0), 160 + 2 * 3 * 4);
}

TEST(PageDemandTest, NoMoreThanTheWorstCase) {
  PageDemand::Of sequence = Sequence(0, 10);
  sequence.deviation = 30;
  sequence.most = 20;
  EXPECT_EQ(PageDemand().With(sequence, 0), 20);
}

}  // namespace
}  // namespace fox
