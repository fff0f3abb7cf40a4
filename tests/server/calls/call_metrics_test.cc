// CallMetrics: which bucket and which cause an end is counted under; threads lose nothing.
#include "server/calls/call_metrics.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

namespace fox {
namespace {

int64_t Total(const Histogram& histogram) {
  int64_t total = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) total += histogram.count(i);
  return total;
}

TEST(CallMetricsTest, EndsHaveACodeAndSomeACause) {
  CallMetrics metrics;
  metrics.OnCallEnd(absl::OkStatus(), v1::STOP);
  metrics.OnCallEnd(absl::OkStatus(), v1::ABORT);
  for (const absl::Status& status :
       {absl::CancelledError(), absl::DeadlineExceededError(""), absl::AbortedError(""),
        absl::UnavailableError(""), absl::InvalidArgumentError("")}) {
    metrics.OnCallEnd(status, v1::FINISH_REASON_UNSPECIFIED);
    EXPECT_EQ(metrics.by_code[static_cast<size_t>(status.code())], 1);
  }
  EXPECT_EQ(metrics.by_code[static_cast<size_t>(absl::StatusCode::kOk)], 2);
  for (size_t cause = 0; cause < metrics.by_cause.size(); ++cause) {
    EXPECT_EQ(metrics.by_cause[cause], 1) << cause;
  }
}

TEST(CallMetricsTest, TheTimesOfASequence) {
  CallMetrics metrics;
  TokenTimes times;
  times.Add(0, /*arrival=*/10, /*when=*/11, &metrics);
  EXPECT_EQ(times.first(), kNever);
  times.Add(1, 10, 12, &metrics);
  times.Add(1, 10, 12.5, &metrics);
  times.Add(2, 10, 13.5, &metrics);  // two at once: half a second each
  EXPECT_EQ(times.first(), 12);
  EXPECT_EQ(Total(metrics.time_to_first_token), 1);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token.sum(), 2);
  EXPECT_EQ(Total(metrics.inter_token), 3);
  EXPECT_DOUBLE_EQ(metrics.inter_token.sum(), 1.5);

  RequestStats stats;
  stats.first_scheduled = 11;
  stats.prompt_tokens = 7;
  stats.completion_tokens = 4;
  stats.acp.pages_allocated = 8;
  stats.acp.pages_evicted = 6;
  metrics.OnSequenceEnd(stats, 10, times.first(), 13.5);
  const std::pair<const Histogram&, double> sums[] = {
      {metrics.queue, 1},        {metrics.prefill, 1},       {metrics.decode, 1.5},
      {metrics.end_to_end, 3.5}, {metrics.prompt_tokens, 7}, {metrics.generation_tokens, 4},
      {metrics.kept_share, 0.25}};
  for (const auto& [histogram, sum] : sums) EXPECT_DOUBLE_EQ(histogram.sum(), sum);
}

TEST(CallMetricsTest, ASequenceThatNeverStartedHasWaitedAndNothingElse) {
  CallMetrics metrics;
  metrics.OnSequenceEnd(RequestStats(), 10, kNever, 12);
  EXPECT_DOUBLE_EQ(metrics.queue.sum(), 2);
  EXPECT_DOUBLE_EQ(metrics.end_to_end.sum(), 2);
  EXPECT_EQ(Total(metrics.prefill), 0);
  EXPECT_EQ(Total(metrics.decode), 0);
  EXPECT_EQ(Total(metrics.prompt_tokens), 0);
  EXPECT_EQ(Total(metrics.generation_tokens), 0);
  EXPECT_EQ(Total(metrics.kept_share), 0);
}

TEST(CallMetricsTest, ABucketHoldsItsBound) {
  Histogram histogram({0.1, 1, 10}, 1e-6);
  for (const double value : {0.0, 0.1, 0.100001, 1.0, 9.0, 11.0, 1e6}) histogram.Observe(value);
  EXPECT_EQ(histogram.count(0), 2);
  EXPECT_EQ(histogram.count(1), 2);
  EXPECT_EQ(histogram.count(2), 1);
  EXPECT_EQ(histogram.count(3), 2);
  EXPECT_NEAR(histogram.sum(), 1000021.200001, 1e-9 * 1000021.2);
}

TEST(CallMetricsTest, ThreadsLoseNothing) {
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
