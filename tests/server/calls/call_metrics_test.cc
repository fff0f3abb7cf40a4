// CallMetrics: the cause that an end is counted under, and the times of a sequence.
#include "server/calls/call_metrics.h"

#include <gtest/gtest.h>

#include <utility>

namespace fox {
namespace {

uint64_t Total(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_count;
}

double Sum(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_sum;
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
  RequestStats stats;
  stats.first_scheduled = 11;
  stats.prompt_tokens = 7;
  stats.completion_tokens = 4;
  stats.acp.pages_allocated = 8;
  stats.acp.pages_evicted = 6;
  metrics.OnSequenceEnd(stats, /*arrival=*/10, /*first_token=*/12, /*when=*/13.5);
  const std::pair<const prometheus::Histogram&, double> sums[] = {
      {metrics.queue, 1},        {metrics.prefill, 1},       {metrics.decode, 1.5},
      {metrics.end_to_end, 3.5}, {metrics.prompt_tokens, 7}, {metrics.generation_tokens, 4},
      {metrics.kept_share, 0.25}};
  for (const auto& [histogram, sum] : sums) EXPECT_DOUBLE_EQ(Sum(histogram), sum);
}

TEST(CallMetricsTest, ASequenceThatNeverStartedHasWaitedAndNothingElse) {
  CallMetrics metrics;
  metrics.OnSequenceEnd(RequestStats(), 10, kNever, 12);
  EXPECT_DOUBLE_EQ(Sum(metrics.queue), 2);
  EXPECT_DOUBLE_EQ(Sum(metrics.end_to_end), 2);
  EXPECT_EQ(Total(metrics.prefill), 0u);
  EXPECT_EQ(Total(metrics.decode), 0u);
  EXPECT_EQ(Total(metrics.prompt_tokens), 0u);
  EXPECT_EQ(Total(metrics.generation_tokens), 0u);
  EXPECT_EQ(Total(metrics.kept_share), 0u);
}

}  // namespace
}  // namespace fox
