// Trace: events of steps and requests.
#include "engine/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class TraceTest : public ::testing::Test {
 protected:
  std::unique_ptr<TraceFile> Open() const {
    absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // Fails when the file is not whole.
  Json Events() const {
    std::ifstream file(path_);
    return Json::parse(file).at("traceEvents");
  }

  const std::string path_ = ::testing::TempDir() + "/trace_test.json";
};

// Plans of two tokens each.
StepPlan TwoTokens() {
  StepPlan plan;
  plan.sequences.emplace_back().token_ids = {1, 2};
  return plan;
}

TEST_F(TraceTest, OverlappingPlansGetRowsOfTheirOwn) {
  Trace trace(Open());
  const StepPlan plan = TwoTokens();
  StepResult result;
  result.free_pages = 9;
  trace.BeforeSubmit(plan);
  trace.AfterSubmit(plan);
  for (int i = 0; i < 3; ++i) {  // two in flight
    trace.BeforeSubmit(plan);
    trace.AfterSubmit(plan);
    trace.BeforeCollect();
    trace.AfterCollect(plan, result);
  }
  std::map<int, double> end_of_row;
  std::map<std::string, int> engine_spans;
  int steps = 0;
  for (const Json& event : Events()) {
    SCOPED_TRACE(event);
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    if (name.rfind("step ", 0) != 0) {
      EXPECT_EQ(event["tid"], 1) << name;
      ++engine_spans[name];
      continue;
    }
    const int row = event["tid"];
    const double begin = event["ts"];
    EXPECT_GE(begin, end_of_row[row]);
    end_of_row[row] = begin + event["dur"].get<double>();
    EXPECT_EQ(event["name"], "step " + std::to_string(steps++));
    EXPECT_EQ(event["args"]["tokens"], 2);
    EXPECT_EQ(event["args"]["free_pages"], 9);
  }
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(end_of_row.size(), 2u);
  EXPECT_EQ(engine_spans, (std::map<std::string, int>{{"submit", 4}, {"collect", 3}}));
}

// Seconds of each phase of each request, as "ID PHASE"; phases nest.
std::map<std::string, double> Phases(const Json& events) {
  std::map<std::string, double> seconds;
  int nesting = 0;
  for (const Json& event : events) {
    SCOPED_TRACE(event);
    if (event.value("cat", "") != "request") continue;
    const bool begins = event["ph"] == "b";
    seconds[event["id"].dump() + " " + event["name"].get<std::string>()] +=
        (begins ? -1e-6 : 1e-6) * event["ts"].get<double>();
    nesting += begins ? 1 : -1;
    EXPECT_GE(nesting, 0);
  }
  EXPECT_EQ(nesting, 0);
  return seconds;
}

TEST_F(TraceTest, ARequestIsItsPhases) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  Trace trace(Open());
  const Seconds start = now();
  Finish finish;
  finish.reason = FinishReason::kLength;
  finish.stats.arrival = start - 5;
  finish.stats.first_scheduled = start - 3;
  finish.stats.completion_tokens = 5;
  trace.OnFirstToken(7);
  Request request;
  request.id = 7;
  request.trace_parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  trace.OnFinish(request, finish);
  finish.stats.first_scheduled = 0;
  finish.status = absl::DeadlineExceededError("waited too long in the queue");
  request.id = 8;
  request.trace_parent = "";
  trace.OnFinish(request, finish);
  const double slack = now() - start + 1e-6;

  const Json events = Events();
  std::map<std::string, double> seconds = Phases(events);
  const std::map<std::string, double> expected = {{"7 request", 5}, {"7 queued", 2},
                                                  {"7 prefill", 3}, {"7 decode", 0},
                                                  {"8 request", 5}, {"8 queued", 5}};
  ASSERT_EQ(seconds.size(), expected.size());
  for (const auto& [key, value] : expected) EXPECT_NEAR(seconds[key], value, slack) << key;
  EXPECT_THAT(events.dump(), HasSubstr("\"completion_tokens\":5,\"finish\":\"length\""));
  EXPECT_THAT(
      events.dump(),
      HasSubstr("\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\""));
  EXPECT_THAT(events.dump(), HasSubstr("\"finish\":\"failed\""));
  EXPECT_THAT(events.dump(), HasSubstr("\"max_log_evicted_mass\":null"));  // nothing was evicted
}

}  // namespace
}  // namespace fox
