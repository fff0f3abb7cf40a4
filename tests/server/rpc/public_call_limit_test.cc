// PublicCallLimit: each client has its count, and calls that never end are forgotten.
#include "server/rpc/public_call_limit.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

constexpr int kMost = PublicCallLimit::kMaxOfAClient;

TEST(PublicCallLimitTest, AClientHasFewOpenCallsAndOldOnesAreForgotten) {
  PublicCallLimit limit;
  constexpr uint64_t a = 1, b = 2;
  for (double now : {100.0, 102.0, 110.0}) {
    SCOPED_TRACE(now);
    for (int i = 0; i < kMost; ++i) EXPECT_TRUE(limit.Enter(a, now));
    EXPECT_FALSE(limit.Enter(a, now + 1.9));
  }
  EXPECT_TRUE(limit.Enter(b, 111));
  limit.Leave(a);
  EXPECT_TRUE(limit.Enter(a, 111));
  EXPECT_FALSE(limit.Enter(a, 111));
  for (int i = 0; i < 3 * kMost; ++i) limit.Leave(a);  // late ones earn nothing
  for (int i = 0; i < kMost; ++i) EXPECT_TRUE(limit.Enter(a, 111));
  EXPECT_FALSE(limit.Enter(a, 111));
}

}  // namespace
}  // namespace fox
