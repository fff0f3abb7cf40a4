// Speculation: drafts from the last tokens, and the record of their success.
#include "engine/request/speculation.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

using Tokens = std::vector<int32_t>;

TEST(SpeculationTest, TheLongestLastOccurrenceIsContinued) {
  struct {
    Tokens tokens;
    int32_t max, min;
    int64_t skip, count, window;
    Tokens drafts;
  } const cases[] = {
      {{7}, 3, 1, 0, 4, 99, {}},
      {{1, 2, 3}, 3, 1, 0, 4, 99, {}},
      {{1, 2, 8, 1, 2, 9, 1, 2}, 3, 2, 0, 2, 99, {9, 1}},        // of several the last
      {{3, 1, 2, 8, 1, 2, 9, 3, 1, 2}, 3, 1, 0, 2, 99, {8, 1}},  // the longest
      {{3, 1, 2, 8, 1, 2, 9, 3, 1, 2}, 2, 1, 0, 2, 99, {9, 3}},  // no longer than max
      {{3, 1, 2, 8, 1, 2, 9, 3, 1, 2}, 3, 3, 0, 1, 99, {8}},
      {{1, 2, 8, 5, 2}, 3, 2, 0, 2, 99, {}},               // one token is too short
      {{1, 2, 8, 5, 2}, 3, 1, 1, 2, 99, {5, 2}},           // after a token that is not known yet
      {{4, 6, 5, 6, 5}, 3, 1, 0, 5, 99, {6, 5, 6, 5, 6}},  // it repeats itself
      {{6, 5, 6, 5}, 3, 1, 1, 3, 99, {5, 6, 5}},
      {{1, 2, 8, 0, 0, 1, 2}, 3, 1, 0, 2, 7, {8, 0}},
      {{1, 2, 8, 0, 0, 1, 2}, 3, 1, 0, 2, 6, {8, 0}},  // 2 alone is in the window
      {{1, 2, 8, 0, 0, 1, 2}, 3, 2, 0, 2, 6, {}},
  };
  for (const auto& c : cases) {
    const Speculation how{static_cast<int32_t>(c.count), c.max, c.min};
    EXPECT_EQ(LookUpDrafts(c.tokens, how, c.skip, c.count, c.window), c.drafts)
        << &c - cases << ": " << ::testing::PrintToString(c.tokens);
  }
}

TEST(SpeculationTest, BadDraftsWaitLongerAndLonger) {
  DraftRecord record;
  const auto judge = [&](int64_t at, int64_t drafted, int64_t accepted) {
    record.OnDrafted(drafted);
    for (int64_t i = 0; i < accepted; ++i) record.OnAccepted();
    record.Judge(at);
  };
  int64_t length = 10;
  const auto fail = [&](int64_t drafted, int64_t wait) {
    judge(length, drafted, 0);
    record.Judge(length + 1);  // nothing new
    EXPECT_FALSE(record.MayDraft(length + wait - 1));
    length += wait;
    EXPECT_TRUE(record.MayDraft(length));
  };
  EXPECT_TRUE(record.MayDraft(0));
  EXPECT_EQ(record.max_drafts(), 1);
  for (const int64_t wait : {16, 64, 64}) fail(4, wait);
  for (const int64_t most : {int64_t{1}, int64_t{kMaxDrafts}}) {
    judge(1, 1, 1);
    EXPECT_EQ(record.max_drafts(), most);
  }
  judge(1, 9, 2);  // enough
  fail(4, 2);
  EXPECT_EQ(record.max_drafts(), kMaxDrafts);
  fail(4, 8);
  EXPECT_EQ(record.max_drafts(), 1);
}

}  // namespace
}  // namespace fox
