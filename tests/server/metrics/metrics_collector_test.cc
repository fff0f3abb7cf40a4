// The exported metrics: values after a scripted run, and vLLM's names and buckets.
#include "server/metrics/metrics_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "prometheus/text_serializer.h"
#include "tests/server/calls/planned_call.h"

namespace fox {
namespace {

// Values by name and labels, as in the text.
using Samples = std::map<std::string, double>;

class MetricsCollectorTest : public ::testing::Test {
 protected:
  std::string Text(bool vllm_aliases) {
    return prometheus::TextSerializer().Serialize(
        CollectMetrics(*test_.core, steps_, vllm_aliases));
  }
  Samples Scrape(bool vllm_aliases = false) {
    Samples samples;
    for (const auto line : absl::StrSplit(Text(vllm_aliases), '\n', absl::SkipEmpty())) {
      if (line.front() == '#') continue;
      const size_t space = line.rfind(' ');
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
      EXPECT_TRUE(samples.emplace(std::string(line.substr(0, space)), value).second) << line;
    }
    return samples;
  }
  // Runs a call to its end, or until `meanwhile` has ended it.
  absl::Status Run(const sim::CallPlan& plan,
                   const std::function<void(Call&)>& meanwhile = nullptr) {
    const PlannedCall planned(test_, plan);
    if (meanwhile) meanwhile(*planned.call);
    absl::Status status = planned.WaitForEnd();
    EXPECT_TRUE(Eventually([this] { return test_.core->registry().empty(); }));
    return status;
  }

  TestCore test_;
  StepMetrics steps_;
};

TEST_F(MetricsCollectorTest, NothingHasHappened) {
  Samples samples = Scrape();
  EXPECT_EQ(samples["fox_kv_pages"], 4096);
  EXPECT_EQ(samples["fox_kv_pages_live"], 0);
  EXPECT_EQ(samples["fox_kv_kept_ratio"], 1);
  EXPECT_EQ(samples["fox_max_log_evicted_mass"], kNoMass);
  EXPECT_EQ(samples["fox_log_tolerance"], -10);
  EXPECT_EQ(samples["fox_calls_max"], 4096);
  EXPECT_GT(samples["process_resident_memory_bytes"], 1e6);
  EXPECT_GE(samples.at("process_heap_bytes"), 0);  // 0: a sanitizer's allocator
  EXPECT_GE(samples["process_open_fds"], 3);
  EXPECT_GT(samples["process_cpu_seconds_total"], 0);
  const double now = static_cast<double>(time(nullptr));
  EXPECT_NEAR(samples["fox_last_step_timestamp_seconds"], now, 5);
  EXPECT_NEAR(samples["process_start_time_seconds"], now, 120);
  EXPECT_LE(samples["process_start_time_seconds"], now + 2);
  const auto build = samples.lower_bound("fox_build_info{");
  EXPECT_THAT(build->first, ::testing::HasSubstr("version=\"0.0\""));
  EXPECT_EQ(build->second, 1);
}

TEST_F(MetricsCollectorTest, AScriptedRun) {
  sim::CallPlan two = StreamOf("hello", 30), invalid = two;
  two.prompts[0].sequences = 2;
  invalid.prompts[0].invalid = true;
  EXPECT_TRUE(Run(two).ok());
  EXPECT_TRUE(Run(StreamOf("x", 5)).ok());
  EXPECT_EQ(Run(invalid).code(), absl::StatusCode::kInvalidArgument);
  test_.script->step_delay_us = 1000;
  const absl::Status cancelled = Run(StreamOf("endless", 4000), [this](Call& call) {
    EXPECT_TRUE(Eventually([this] { return test_.engine->stats().generated_tokens > 70; }));
    call.OnClosed(absl::CancelledError("the client went away"));
  });
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(test_.WaitIdle());
  test_.core->Drain();
  EXPECT_EQ(Run(StreamOf("late", 5)).code(), absl::StatusCode::kUnavailable);

  Samples s = Scrape();
  const double tokens = s["fox_generated_tokens_total"];
  EXPECT_GT(tokens, 70);
  const std::pair<const char*, double> expected[] = {
      {"fox_calls_ended_total{code=\"OK\"}", 2},
      {"fox_calls_ended_total{code=\"INVALID_ARGUMENT\"}", 1},
      {"fox_calls_ended_total{code=\"CANCELLED\"}", 1},
      {"fox_calls_cancelled_total{cause=\"client\"}", 1},
      {"fox_calls_cancelled_total{cause=\"drain\"}", 0},
      {"fox_sequences_finished_total{reason=\"length\"}", 3},
      {"fox_admission_rejections_total{reason=\"draining\"}", 1},
      {"fox_admission_rejections_total{reason=\"queue\"}", 0},
      {"fox_draining", 1},
      {"fox_requests_running", 0},
      {"fox_calls", 0},
      {"fox_call_bytes", 0},
      {"fox_kv_pages_live", 0},
      // Each sequence has one first token; all others come after one.
      {"fox_time_to_first_token_seconds_count", 4},
      {"fox_inter_token_seconds_count", tokens - 4},
      {"fox_inter_token_seconds_bucket{le=\"+Inf\"}", tokens - 4},
      {"fox_request_seconds_count", 4},
      {"fox_request_generated_tokens_sum", tokens},
      {"fox_request_prompt_tokens_sum", s["fox_prompt_tokens_total"]}};
  for (const auto& [name, value] : expected) EXPECT_EQ(s.at(name), value) << name;
  // A token takes a step, which takes a millisecond in the last call.
  EXPECT_GT(s["fox_inter_token_seconds_sum"], 1e-3 * (tokens - 70));
  EXPECT_GE(s["fox_request_seconds_sum"], s["fox_queue_seconds_sum"] +
                                              s["fox_prefill_seconds_sum"] +
                                              s["fox_decode_seconds_sum"] - 1e-3);
}

TEST_F(MetricsCollectorTest, RunningRequestsHoldPages) {
  test_.script->step_delay_us = 1000;
  const absl::Status status = Run(StreamOf("endless", 4000), [this](Call& call) {
    EXPECT_TRUE(Eventually([this] { return test_.engine->stats().generated_tokens > 3; }));
    Samples s = Scrape(/*vllm_aliases=*/true);
    EXPECT_EQ(s["fox_requests_running"], 1);
    EXPECT_EQ(s["fox_calls"], 1);
    EXPECT_GT(s["fox_kv_pages_live"], 0);
    const std::string labels = "{model_name=\"scripted\",engine=\"0\"}";
    EXPECT_EQ(s["vllm:num_requests_running" + labels], 1);
    EXPECT_NEAR(s["vllm:kv_cache_usage_perc" + labels], s["fox_kv_pages_live"] / 4096, 1e-3);
    call.AbortPrompt(0);
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(Scrape()["fox_calls_cancelled_total{cause=\"abort\"}"], 1);
}

// vLLM's names and buckets, which its tools read, are exported only if they are asked for.
TEST_F(MetricsCollectorTest, VllmNames) {
  EXPECT_THAT(Text(false), ::testing::Not(::testing::HasSubstr("vllm:")));
  EXPECT_TRUE(Run(StreamOf("x", 5)).ok());
  const std::string text = Text(true);
  const std::pair<const char*, const char*> types[] = {
      {"gauge",
       "num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc "
       "cache_config_info"},
      {"counter",
       "prompt_tokens_total generation_tokens_total request_success_total num_preemptions_total "
       "prefix_cache_queries_total prefix_cache_hits_total spec_decode_num_draft_tokens_total "
       "spec_decode_num_accepted_tokens_total"},
      {"histogram",
       "time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds "
       "e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds "
       "request_decode_time_seconds request_prompt_tokens request_generation_tokens "
       "iteration_tokens_total"}};
  for (const auto& [type, names] : types) {
    for (const absl::string_view name : absl::StrSplit(names, ' ')) {
      EXPECT_THAT(text, ::testing::HasSubstr(absl::StrCat("# TYPE vllm:", name, " ", type, "\n")));
    }
  }
  std::map<std::string, std::set<std::string>> bounds;
  for (const auto& [key, value] : Scrape(true)) {
    const size_t name = key.find("_bucket{"), le = key.find("le=\"");
    if (!absl::StartsWith(key, "vllm:") || name == std::string::npos) continue;
    bounds[key.substr(5, name - 5)].insert(key.substr(le + 4, key.find('"', le + 4) - le - 4));
  }
  const auto set = [](const char* names) -> std::set<std::string> {
    return absl::StrSplit(names, ' ');
  };
  const auto request =
      set("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680 +Inf");
  EXPECT_EQ(bounds["time_to_first_token_seconds"],
            set("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 "
                "160 640 2560 +Inf"));
  EXPECT_EQ(bounds["inter_token_latency_seconds"],
            set("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80 "
                "+Inf"));
  EXPECT_EQ(bounds["e2e_request_latency_seconds"], request);
  EXPECT_EQ(bounds["request_queue_time_seconds"], request);
}

}  // namespace
}  // namespace fox
