// CallMetrics: which bucket and which cause an end is counted under.
#include "server/calls/call_metrics.h"

#include <gtest/gtest.h>

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
  metrics.OnCallEnd(absl::CancelledError(), v1::FINISH_REASON_UNSPECIFIED);
  metrics.OnCallEnd(absl::DeadlineExceededError(""), v1::FINISH_REASON_UNSPECIFIED);
  metrics.OnCallEnd(absl::AbortedError(""), v1::FINISH_REASON_UNSPECIFIED);
  metrics.OnCallEnd(absl::UnavailableError(""), v1::FINISH_REASON_UNSPECIFIED);
  metrics.OnCallEnd(absl::InvalidArgumentError(""), v1::FINISH_REASON_UNSPECIFIED);
  EXPECT_EQ(metrics.by_code[static_cast<size_t>(absl::StatusCode::kOk)], 2);
  EXPECT_EQ(metrics.by_code[static_cast<size_t>(absl::StatusCode::kInvalidArgument)], 1);
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
  EXPECT_DOUBLE_EQ(metrics.queue.sum(), 1);
  EXPECT_DOUBLE_EQ(metrics.prefill.sum(), 1);
  EXPECT_DOUBLE_EQ(metrics.decode.sum(), 1.5);
  EXPECT_DOUBLE_EQ(metrics.end_to_end.sum(), 3.5);
  EXPECT_DOUBLE_EQ(metrics.prompt_tokens.sum(), 7);
  EXPECT_DOUBLE_EQ(metrics.generation_tokens.sum(), 4);
  EXPECT_DOUBLE_EQ(metrics.kept_share.sum(), 0.25);
}

TEST(CallMetricsTest, WhoNeverStartedHasWaitedAndNothingElse) {
  CallMetrics metrics;
  metrics.OnSequenceEnd(RequestStats(), 10, kNever, 12);
  EXPECT_DOUBLE_EQ(metrics.queue.sum(), 2);
  EXPECT_DOUBLE_EQ(metrics.end_to_end.sum(), 2);
  for (const Histogram* histogram : {&metrics.prefill, &metrics.decode, &metrics.prompt_tokens,
                                     &metrics.generation_tokens, &metrics.kept_share}) {
    EXPECT_EQ(Total(*histogram), 0);
  }
}

}  // namespace
}  // namespace fox
