// Means by position and differences, counted by hand.
#include "engine/eval/acp_loss.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

// Two windows of 64 tokens; the loss of token t is t in the first and 2 t in the second.
AcpLoss Losses() {
  AcpLoss loss;
  loss.window = 64;
  for (int window = 1; window <= 2; ++window) {
    for (int token = 1; token < 64; ++token) loss.off.push_back(window * token);
  }
  loss.paper = loss.certified = loss.rounding = loss.off;
  return loss;
}

TEST(AcpLossTest, BucketsAreMeansByPosition) {
  const auto json = Losses().Json();
  EXPECT_EQ(json["tokens"], 126);
  EXPECT_EQ(json["nll"]["off"], 48);  // 1.5 x 32
  ASSERT_EQ(json["by_position"].size(), 16u);
  for (int i = 0; i < 16; ++i) {
    SCOPED_TRACE(i);
    const auto& bucket = json["by_position"][static_cast<size_t>(i)];
    EXPECT_EQ(bucket["first"], 4 * i);
    EXPECT_EQ(bucket["end"], 4 * i + 4);
    // Token 0 has no loss: 1, 2, 3 are left of the first four.
    EXPECT_DOUBLE_EQ(bucket["off"].get<double>(), 1.5 * (i == 0 ? 2.0 : 4 * i + 1.5));
    EXPECT_EQ(bucket["off"], bucket["certified"]);
  }
}

TEST(AcpLossTest, DifferencesAreAgainstNoPruning) {
  AcpLoss loss = Losses();
  loss.certified[5] += 0.5;
  loss.certified[100] -= 0.75;
  loss.paper[0] += 1;
  const auto json = loss.Json();
  EXPECT_NEAR(json["difference"]["certified"]["mean"].get<double>(), -0.25 / 126, 1e-15);
  EXPECT_EQ(json["difference"]["certified"]["largest"], 0.75);
  EXPECT_NEAR(json["difference"]["paper"]["mean"].get<double>(), 1.0 / 126, 1e-15);
  EXPECT_EQ(json["difference"]["rounding"]["largest"], 0);
}

}  // namespace
}  // namespace fox
