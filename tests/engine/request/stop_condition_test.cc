// StopCondition: which ids end a request, which of them count as end of sequence, and until when
// they are masked.
#include "engine/request/stop_condition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StopParams Params(std::vector<int32_t> ids, int32_t min_tokens = 0, bool ignore_eos = false) {
  StopParams params;
  params.stop_token_ids = std::move(ids);
  params.min_tokens = min_tokens;
  params.ignore_eos = ignore_eos;
  return params;
}

TEST(StopConditionTest, StopIdsAndEndOfSequenceStop) {
  const StopCondition stop(Params({9, 5}), {7, 2});
  for (const int32_t id : {2, 5, 7, 9}) EXPECT_TRUE(stop.Stops(id)) << id;
  for (const int32_t id : {0, 1, 6, 10}) EXPECT_FALSE(stop.Stops(id)) << id;
  EXPECT_TRUE(stop.IsEos(2));
  EXPECT_TRUE(stop.IsEos(7));
  EXPECT_FALSE(stop.IsEos(5));
}

TEST(StopConditionTest, IgnoreEosLeavesTheRequestsOwnIds) {
  const StopCondition stop(Params({2, 5}, 0, /*ignore_eos=*/true), {2, 7});
  EXPECT_TRUE(stop.Stops(2));  // asked for by the request itself
  EXPECT_FALSE(stop.IsEos(2));
  EXPECT_FALSE(stop.Stops(7));
}

TEST(StopConditionTest, StopsAreMaskedBeforeMinTokensEachOnce) {
  const StopCondition stop(Params({5, 2, 5}, /*min_tokens=*/3), {2});
  EXPECT_THAT(stop.MaskedAt(0), ElementsAre(2, 5));
  EXPECT_THAT(stop.MaskedAt(2), ElementsAre(2, 5));
  EXPECT_THAT(stop.MaskedAt(3), IsEmpty());
  EXPECT_THAT(StopCondition(Params({5}), {}).MaskedAt(0), IsEmpty());
}

}  // namespace
}  // namespace fox
