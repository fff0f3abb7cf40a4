// Call with all its threads, its grammars and its line in the log. Its stages, and each way in
// which a call ends, in any order: sim/call_day_test.cc.
#include "server/calls/call.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <regex>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/process/log.h"
#include "tests/server/calls/planned_call.h"

namespace fox {
namespace {

class CallTest : public ::testing::Test {
 protected:
  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.max_num_queued_reqs = 2;
    return options;
  }

  TestCore test_{Options()};
};

TEST_F(CallTest, AnAnswerFollowsItsGrammar) {
  sim::CallPlan plan = StreamOf("many", 30);
  plan.prompts[0].sequences = 2;
  plan.prompts[0].regex = "(yes|no)[0-9]{3}";
  for (const char* name : {"compiled", "kept"}) {
    SCOPED_TRACE(name);
    const PlannedCall call(test_, plan);
    ASSERT_TRUE(call.WaitForEnd().ok());
    for (const uint32_t sequence : {0u, 1u}) {
      EXPECT_TRUE(std::regex_match(call.Text(sequence), std::regex("(yes|no)[0-9]{3}")))
          << call.Text(sequence);
    }
    EXPECT_TRUE(test_.WaitIdle());
  }
  plan.prompts[0].regex = "(";
  const PlannedCall wrong(test_, plan);
  const absl::Status refused = wrong.WaitForEnd();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(refused.message().find("regex: "), 0U) << refused;
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
  EXPECT_EQ(wrong.transport->received()[0], '!');
  EXPECT_TRUE(test_.WaitIdle());
}

// A client with hard grammars waits for itself, and is refused in the end. A grammar that is kept
// does not wait.
TEST_F(CallTest, GrammarsWaitInTurnAndAClientsAreFew) {
  sim::CallPlan known = StreamOf("many", 30);
  known.prompts[0].regex = "[0-9]{3}";
  EXPECT_TRUE(PlannedCall(test_, known).WaitForEnd().ok());
  std::promise<void> busy, go;
  const auto wait = [&](auto) {
    busy.set_value();
    go.get_future().wait();
    return true;
  };
  ASSERT_TRUE(test_.core->grammars().Post(/*client=*/0, {{}, "busy"}, wait).ok());
  busy.get_future().wait();
  std::vector<std::unique_ptr<PlannedCall>> calls;
  for (int i = 0; i < 5; ++i) {
    sim::CallPlan plan = StreamOf("many", 30);
    plan.prompts[0].request_id = absl::StrCat("call", i);
    plan.prompts[0].regex = absl::StrCat("[a-z]{3}", i);
    calls.push_back(std::make_unique<PlannedCall>(test_, plan));
  }
  const absl::Status refused = calls[4]->WaitForEnd();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const absl::Status found = PlannedCall(test_, known).WaitForEnd();
  EXPECT_TRUE(found.ok()) << found;
  calls[0]->transport->CloseReader(absl::CancelledError("left"));
  go.set_value();
  EXPECT_TRUE(absl::IsCancelled(calls[0]->WaitForEnd()));
  EXPECT_TRUE(calls[1]->WaitForEnd().ok());
  for (const size_t i : {2U, 3U}) {  // the engine's queue may be full by now
    const absl::Status end = calls[i]->WaitForEnd();
    EXPECT_TRUE(end.ok() || absl::IsResourceExhausted(end)) << i << ": " << end;
  }
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(CallTest, AnAbandonedCallEndsThoughItsStepHangs) {
  const std::unique_lock<std::mutex> hang(test_.script->step);
  const PlannedCall stuck(test_, StreamOf("stuck", 30));
  while (test_.engine->HeartbeatAge() < 0.3) std::this_thread::yield();
  EXPECT_FALSE(test_.engine->Stop(0.01));
  AbandonCalls(*test_.core, absl::UnavailableError("the engine hangs"));
  EXPECT_TRUE(absl::IsUnavailable(stuck.WaitForEnd()));
  EXPECT_TRUE(test_.core->registry().empty());
}

// The engine, the lane and the reader each on a thread of their own.
TEST_F(CallTest, WritesTakenOnAnotherThreadLoseAndRepeatNothing) {
  constexpr int32_t kTokens = 2000;
  sim::CallPlan plan = StreamOf("hello", kTokens);
  plan.flow_window = 64;
  const PlannedCall call(test_, plan, {}, /*reads=*/false);
  while (!call.transport->released()) {
    if (call.transport->has_bytes()) call.transport->ReadBytes();
  }
  EXPECT_TRUE(call.WaitForEnd().ok());
  EXPECT_EQ(call.Text(), ExpectedText("hello", kTokens));
  EXPECT_TRUE(test_.WaitIdle());
}

// Two prompts of a core whose caller is its only thread.
struct TwoPrompts {
  explicit TwoPrompts(int32_t tokens) : plan(StreamOf("hello", tokens)) {
    plan.prompts.push_back(plan.prompts[0]);
    plan.prompts[1].request_id = "other";
  }
  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.limits.has_threads = false;
    return options;
  }

  TestCore test{Options()};
  sim::CallPlan plan;
};

TEST_F(CallTest, EachPromptHasAShare) {
  TwoPrompts two(3);
  TestCore& test = two.test;
  const PlannedCall call(test, two.plan);
  EXPECT_EQ(test.core->calls().calls(), 1);
  test.RunRounds(2);
  EXPECT_EQ(test.core->calls().calls(), 2);
  EXPECT_EQ(test.core->registry().AllPrompts().size(), 2u);
  test.RunRounds(20);
  EXPECT_EQ(call.call->stage(), Call::Stage::kEnded);
  EXPECT_EQ(test.core->calls().calls(), 0);
}

// Acts once, at the third point where other actors may: the second prompt is being converted.
class AtTheSecondPrompt final : public sim::SimEnvironment {
 public:
  explicit AtTheSecondPrompt(std::function<void()> act) : act_(std::move(act)) {}
  void Interrupt() override {
    if (++points_ == 3) act_();
  }
  void ReportViolation(const std::string& what) override { ADD_FAILURE() << what; }
  void Count(sim::CallMark) override {}

 private:
  const std::function<void()> act_;
  int points_ = 0;
};

// Its share is given back once, although the first prompt's events took of it.
TEST_F(CallTest, ACallMayEndWhileItsAdmissionStillRuns) {
  TwoPrompts two(600);
  TestCore& test = two.test;
  std::shared_ptr<sim::SimTransport> transport;
  AtTheSecondPrompt environment([&] {
    test.RunRounds(400);
    EXPECT_GT(test.core->calls().bytes(), 20000);
    transport->CloseReader(absl::CancelledError("the client went away"));
    test.RunRounds(20);
    EXPECT_EQ(test.core->calls().calls(), 0);
  });
  transport = std::make_shared<sim::SimTransport>(sim::SimTransport::Port::kHttp, environment);
  CallInfo info;
  info.arrival = test.engine->Now();
  const auto call =
      std::make_shared<Call>(*test.core, std::move(info), Call::Work::kGenerate,
                             std::make_unique<sim::SimFormat>(two.plan, environment), transport);
  transport->Attach(call);
  call->Start(/*bytes=*/1);
  test.RunRounds(2);
  EXPECT_EQ(call->stage(), Call::Stage::kEnded);
  EXPECT_EQ(test.core->calls().bytes(), 0);
}

TEST_F(CallTest, ItsLineInTheLogTellsWhatOperatorsAsk) {
  ConfigureLog(LogLevel::kInfo, LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  test_.script->step_delay_us = 1000;
  sim::CallPlan plan = StreamOf("hello", 30);
  plan.prompts[0].sequences = 2;
  CallInfo info;
  info.method = "GenerateStream";
  info.peer = "ipv4:127.0.0.1:7";
  EXPECT_TRUE(PlannedCall(test_, plan, std::move(info)).WaitForEnd().ok());
  FlushLog(10);
  const nlohmann::json line = nlohmann::json::parse(::testing::internal::GetCapturedStderr());
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  EXPECT_EQ(line["event"], "request finished");
  EXPECT_EQ(line["request_id"], "call");
  EXPECT_EQ(line["method"], "GenerateStream");
  EXPECT_EQ(line["peer"], "ipv4:127.0.0.1:7");
  EXPECT_EQ(line["status"], "OK");
  EXPECT_EQ(line["finish_reason"], "LENGTH");
  EXPECT_EQ(line["prompt_tokens"], 6);
  EXPECT_EQ(line["completion_tokens"], 60);
  EXPECT_EQ(line["preemptions"], 0);
  EXPECT_GT(line["peak_pages"], 0);
  EXPECT_EQ(line["pages_evicted"], 0);
  EXPECT_LE(line["queue_s"], line["ttft_s"]);
  EXPECT_LT(line["ttft_s"], line["e2e_s"]);
  EXPECT_GE(line["e2e_s"], 0.03);
  EXPECT_GT(line["tokens_per_s"], 0);
  EXPECT_LE(line["tokens_per_s"], 2000);  // two sequences, a millisecond a step
}

}  // namespace
}  // namespace fox
