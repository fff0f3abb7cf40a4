// Histogram: buckets end where they say, and threads lose nothing.
#include "server/calls/histogram.h"

#include <gtest/gtest.h>

#include <thread>

namespace fox {
namespace {

TEST(HistogramTest, ABucketHoldsItsBound) {
  Histogram histogram({0.1, 1, 10}, 1e-6);
  for (const double value : {0.0, 0.1, 0.100001, 1.0, 9.0, 11.0, 1e6}) histogram.Observe(value);
  EXPECT_EQ(histogram.count(0), 2);
  EXPECT_EQ(histogram.count(1), 2);
  EXPECT_EQ(histogram.count(2), 1);
  EXPECT_EQ(histogram.count(3), 2);
  EXPECT_NEAR(histogram.sum(), 1000021.200001, 1e-9 * 1000021.2);
}

TEST(HistogramTest, ThreadsLoseNothing) {
  Histogram histogram({1, 2}, 1);
  const auto observe = [&histogram] {
    for (int i = 0; i < 100000; ++i) histogram.Observe(2);
  };
  std::thread other(observe);
  observe();
  other.join();
  EXPECT_EQ(histogram.count(1), 200000);
  EXPECT_EQ(histogram.sum(), 400000);
}

}  // namespace
}  // namespace fox
