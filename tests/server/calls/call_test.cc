// Call: its events in order, each stage, each way in which a call ends before or while it runs.
#include "server/calls/call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <regex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/process/log.h"
#include "tests/fixtures/test_core.h"
#include "tests/server/calls/recorded_call.h"

namespace fox {
namespace {

constexpr char kId[] = "call";
using Stage = Call::Stage;

// All work on the test's thread, in rounds.
class CallRoundsTest : public ::testing::Test {
 protected:
  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.max_num_queued_reqs = 2;
    options.limits.has_threads = false;
    options.limits.max_call_bytes = 64 << 10;
    return options;
  }
  CallInfo Arriving() {
    CallInfo info;
    info.arrival = test_.engine->Now();
    return info;
  }
  // A call whose reader takes a write when the test says so.
  RecordedCall Slow(const EventFormat::Convert& convert, bool stream = true, size_t prompts = 1) {
    return RecordedCall(*test_.core, Arriving(), convert, stream, prompts, /*fast=*/false);
  }
  // The call has ended and holds nothing; so has the core.
  void ExpectNothingLeft(const RecordedCall& recorded) {
    EXPECT_EQ(recorded.call->stage(), Stage::kEnded);
    test_.RunRounds(3);
    EXPECT_TRUE(test_.core->Idle());
    EXPECT_EQ(test_.core->calls().bytes(), 0);
    EXPECT_EQ(test_.core->admitting(), 0);
    EXPECT_TRUE(test_.core->registry().empty());
    const EngineStats stats = test_.engine->stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.free_pages, stats.num_pages);
  }

  TestCore test_{Options()};
};

TEST_F(CallRoundsTest, AStreamHasOneWriteInFlightAndEndsWithTheLast) {
  RecordedCall recorded = Slow(Converting(test_, GreedyRequest("hello", 3)));
  EXPECT_EQ(recorded.call->stage(), Stage::kAdmitted);
  recorded.Start();
  EXPECT_EQ(test_.core->calls().calls(), 1);
  test_.RunRounds(20);
  EXPECT_EQ(recorded.call->stage(), Stage::kRunning);
  EXPECT_EQ(recorded.transport->writes(), 1);  // the prompt's event
  int writes = 1;
  while (recorded.transport->TakeWrite()) {
    test_.RunRounds(1);
    if (!recorded.transport->ended()) ++writes;
    EXPECT_EQ(recorded.transport->writes(), writes);
  }
  EXPECT_EQ(recorded.transport->Text(), ExpectedText("hello", 3));
  EXPECT_TRUE(recorded.transport->events().back().has_finish());
  EXPECT_TRUE(recorded.transport->WaitForEnd().ok());
  // The last bytes are on their way: the share is held until they are taken.
  EXPECT_EQ(recorded.call->stage(), Stage::kDraining);
  EXPECT_EQ(test_.core->calls().calls(), 1);
  recorded.transport->Release();
  ExpectNothingLeft(recorded);
}

TEST_F(CallRoundsTest, OneAnswerIsWrittenWhenAllPromptsHaveEnded) {
  RecordedCall recorded =
      Slow(Converting(test_, GreedyRequest("hello", 3)), /*stream=*/false, /*prompts=*/2);
  recorded.Start();
  test_.RunRounds(2);
  EXPECT_EQ(test_.core->calls().calls(), 2);  // each prompt has a share
  EXPECT_EQ(test_.core->registry().AllPrompts().size(), 2u);
  EXPECT_FALSE(recorded.transport->ended());
  test_.RunRounds(20);
  EXPECT_EQ(recorded.transport->writes(), 0);
  EXPECT_TRUE(recorded.transport->WaitForEnd().ok());
  int finished = 0;
  for (const v1::GenerateDelta& event : recorded.transport->events())
    finished += event.has_finish();
  EXPECT_EQ(finished, 2);
  std::string side_by_side;
  for (const char letter : ExpectedText("hello", 3)) side_by_side += std::string(2, letter);
  EXPECT_EQ(recorded.transport->Text(), side_by_side);
  recorded.transport->Release();
  ExpectNothingLeft(recorded);
}

TEST_F(CallRoundsTest, TheFirstFailureIsTheEndAndDropsEventsThatWait) {
  RecordedCall recorded = Slow(Converting(test_, GreedyRequest("hello", 300)), true, 2);
  recorded.Start();
  test_.RunRounds(10);
  const size_t written = recorded.transport->events().size();
  EXPECT_EQ(recorded.record->dropped, 0);
  recorded.call->OnClosed(absl::DeadlineExceededError("late"));
  recorded.call->OnClosed(absl::CancelledError("gone"));
  EXPECT_EQ(recorded.record->dropped, 1);
  test_.RunRounds(3);
  EXPECT_EQ(test_.engine->stats().running, 0);
  EXPECT_FALSE(recorded.transport->ended());  // a write is in flight
  EXPECT_TRUE(recorded.transport->TakeWrite());
  EXPECT_TRUE(absl::IsDeadlineExceeded(recorded.transport->WaitForEnd()));
  EXPECT_EQ(recorded.transport->failure(), "late (late)");
  EXPECT_EQ(recorded.transport->events().size(), written);
  recorded.transport->Release();
  ExpectNothingLeft(recorded);
}

TEST_F(CallRoundsTest, AFailingPromptEndsTheOthers) {
  const EventFormat::Convert good = Converting(test_, GreedyRequest("hello", 300));
  RecordedCall recorded = Slow(
      [&](size_t prompt) -> absl::StatusOr<GenerationSpec> {
        if (prompt == 1) return absl::InvalidArgumentError("no");
        return good(prompt);
      },
      /*stream=*/false, /*prompts=*/3);
  recorded.Start();
  test_.RunRounds(5);
  EXPECT_TRUE(absl::IsInvalidArgument(recorded.transport->WaitForEnd()));
  EXPECT_EQ(recorded.transport->failure(), "no");
  recorded.transport->Release();
  ExpectNothingLeft(recorded);
}

TEST_F(CallRoundsTest, EventsThatWaitHaveABudgetAndAHangingWriteIsAbandoned) {
  const EventFormat::Convert stream = Converting(test_, GreedyRequest("hello", 3000));
  RecordedCall recorded = Slow([&](size_t prompt) {
    auto spec = stream(prompt);
    spec->sequences[0].flow_window = 0;  // the engine does not wait for the reader
    return spec;
  });
  recorded.Start();
  int rounds = 0;
  for (; recorded.transport->abandoned() == 0 && rounds < 3000; ++rounds) test_.RunRounds(1);
  // Half of the budget is one client's: 32 KiB, taken in steps of 4, of events of 100 bytes.
  EXPECT_GT(rounds, 280);
  EXPECT_LT(rounds, 330);
  EXPECT_LT(test_.core->calls().bytes(), 10 << 10);  // all but the write in flight was given back
  recorded.call->OnClosed(absl::CancelledError("gone"));
  recorded.transport->TakeWrite();
  test_.RunRounds(3);
  EXPECT_EQ(recorded.transport->abandoned(), 1);
  EXPECT_TRUE(absl::IsResourceExhausted(recorded.transport->WaitForEnd()));
  EXPECT_EQ(recorded.transport->writes(), 1);
  recorded.transport->Release();
  ExpectNothingLeft(recorded);
}

TEST_F(CallRoundsTest, AReaderThatStopsPausesItsSequenceAndNothingElse) {
  RecordedCall stopped = Slow(Converting(test_, GreedyRequest("hello", 300), "stopped"));
  RecordedCall reads(*test_.core, Arriving(), Converting(test_, GreedyRequest("hello", 300)));
  stopped.Start();
  reads.Start();
  test_.RunRounds(400);
  EXPECT_TRUE(reads.transport->WaitForEnd().ok());
  EXPECT_FALSE(stopped.transport->ended());
  const int64_t window = test_.core->context.stream_window + 1;
  EXPECT_LE(test_.engine->stats().generated_tokens, 300 + window + 1);
  while (!stopped.transport->ended()) {
    stopped.transport->TakeWrite();
    test_.RunRounds(1);
  }
  EXPECT_EQ(stopped.transport->Text(), ExpectedText("hello", 300));
  stopped.transport->Release();
  ExpectNothingLeft(stopped);
}

// As HTTP has it: the connection has gone, and nothing waits for an end.
TEST_F(CallRoundsTest, ATransportThatLetsGoEarlyIsNotToldOfTheEnd) {
  for (const int rounds : {0, 1, 2, 5, 30}) {
    SCOPED_TRACE(absl::StrCat(rounds, " rounds before"));
    RecordedCall recorded = Slow(Converting(test_, GreedyRequest("hello", 10)));
    recorded.Start();
    test_.RunRounds(rounds);
    recorded.call->OnClosed(absl::CancelledError("gone"));
    recorded.call->OnReleased();
    test_.RunRounds(5);
    EXPECT_FALSE(recorded.transport->ended());
    ExpectNothingLeft(recorded);
  }
}

TEST_F(CallRoundsTest, AClosedCallEndsFromEachStage) {
  for (const int rounds : {0, 1, 2, 5, 30}) {
    SCOPED_TRACE(absl::StrCat(rounds, " rounds before"));
    RecordedCall recorded = Slow(Converting(test_, GreedyRequest("hello", 10)));
    recorded.Start();
    test_.RunRounds(rounds);
    recorded.call->OnClosed(absl::CancelledError("gone"));
    recorded.transport->TakeWrite();
    test_.RunRounds(5);
    EXPECT_EQ(recorded.record->converted, rounds == 0 ? 0 : 1);
    EXPECT_EQ(recorded.record->dropped, 1);
    EXPECT_TRUE(absl::IsCancelled(recorded.transport->WaitForEnd()));
    recorded.transport->Release();
    ExpectNothingLeft(recorded);
  }
}

TEST_F(CallRoundsTest, RefusalsDeliverNothingAndLeaveNothing) {
  const v1::GenerateRequest request = GreedyRequest("many", 30);
  v1::GenerateRequest three = request;
  three.mutable_sampling()->set_n(3);  // one more than the queue ever holds
  const EventFormat::Convert convert = Converting(test_, request);
  const auto run = [&](CallInfo info, const EventFormat::Convert& spec, int parsed) {
    RecordedCall recorded(*test_.core, std::move(info), spec);
    recorded.Start();
    test_.RunRounds(5);
    EXPECT_TRUE(recorded.transport->events().empty());
    EXPECT_EQ(recorded.record->parsed, parsed);
    ExpectNothingLeft(recorded);
    return recorded.transport->WaitForEnd();
  };
  CallInfo late = Arriving();
  late.deadline = test_.now - 1;
  EXPECT_TRUE(absl::IsDeadlineExceeded(run(std::move(late), convert, 0)));
  CallInfo soon_late = Arriving();
  soon_late.deadline = test_.now + 1e-6;
  EXPECT_TRUE(absl::IsDeadlineExceeded(run(std::move(soon_late), convert, 0)));
  const auto fails = [](size_t) { return absl::InvalidArgumentError("no"); };
  EXPECT_TRUE(absl::IsInvalidArgument(run(Arriving(), fails, 1)));
  EXPECT_TRUE(absl::IsOutOfRange(run(Arriving(), Converting(test_, three), 1)));
  EXPECT_TRUE(absl::IsUnavailable(run(
      Arriving(),
      [&](size_t prompt) {
        test_.core->Drain();
        return convert(prompt);
      },
      1)));
  EXPECT_TRUE(absl::IsUnavailable(run(Arriving(), convert, 0)));
}

TEST_F(CallRoundsTest, AnIdIsTakenWhileItsCallRuns) {
  RecordedCall first = Slow(Converting(test_, GreedyRequest("hello", 300)));
  first.Start();
  test_.RunRounds(3);
  RecordedCall second(*test_.core, Arriving(), Converting(test_, GreedyRequest("hello", 3)));
  second.Start();
  test_.RunRounds(3);
  EXPECT_TRUE(absl::IsAlreadyExists(second.transport->WaitForEnd()));
  CallInfo caller;
  EXPECT_TRUE(AbortCalls(*test_.core, caller, kId));
  EXPECT_FALSE(AbortCalls(*test_.core, caller, "other"));
  while (!first.transport->ended()) {
    first.transport->TakeWrite();
    test_.RunRounds(1);
  }
  EXPECT_TRUE(first.transport->WaitForEnd().ok());
  EXPECT_EQ(first.transport->events().back().finish().reason(), v1::ABORT);
  EXPECT_FALSE(AbortCalls(*test_.core, caller, kId));
  first.transport->Release();
  ExpectNothingLeft(first);
}

TEST_F(CallRoundsTest, ASilentStreamIsKeptAliveWhileItRuns) {
  RecordedCall whole = Slow(Converting(test_, GreedyRequest("hello", 30)), /*stream=*/false);
  RecordedCall stream = Slow(Converting(test_, GreedyRequest("hello", 30), "stream"));
  for (RecordedCall* recorded : {&whole, &stream}) {
    recorded->Start();
    recorded->call->OnSilence();  // before its turn
    test_.RunRounds(3);
    recorded->call->OnSilence();
  }
  EXPECT_EQ(whole.record->kept_alive, 0);
  EXPECT_EQ(stream.record->kept_alive, 1);
  stream.call->OnClosed(absl::CancelledError("gone"));
  stream.call->OnSilence();
  EXPECT_EQ(stream.record->kept_alive, 1);
  whole.call->OnClosed(absl::CancelledError("gone"));
  for (RecordedCall* recorded : {&whole, &stream}) {
    recorded->transport->TakeWrite();
    test_.RunRounds(3);
    recorded->transport->Release();
  }
  ExpectNothingLeft(whole);
  ExpectNothingLeft(stream);
}

// With all threads.
class CallTest : public ::testing::Test {
 protected:
  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.max_num_queued_reqs = 2;
    return options;
  }
  CallInfo Arriving() {
    CallInfo info;
    info.arrival = test_.engine->Now();
    return info;
  }
  std::unique_ptr<RecordedCall> Started(EventFormat::Convert convert) {
    auto recorded = std::make_unique<RecordedCall>(*test_.core, Arriving(), std::move(convert));
    recorded->Start();
    return recorded;
  }

  TestCore test_{Options()};
};

TEST_F(CallTest, AnAnswerFollowsItsGrammar) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_regex("(yes|no)[0-9]{3}");
  for (const char* name : {"compiled", "kept"}) {
    SCOPED_TRACE(name);
    const auto recorded = Started(Converting(test_, request));
    ASSERT_TRUE(recorded->transport->WaitForEnd().ok());
    for (const v1::GenerateDelta& event : recorded->transport->events()) {
      if (event.has_finish()) {
        EXPECT_EQ(event.finish().reason(), v1::STOP) << event.finish().index();
      }
    }
    for (const uint32_t index : {0u, 1u}) {
      const std::string text = recorded->transport->Text(index);
      EXPECT_TRUE(std::regex_match(text, std::regex("(yes|no)[0-9]{3}"))) << text;
    }
    EXPECT_TRUE(test_.WaitIdle());
  }
  request.mutable_sampling()->set_regex("(");
  const auto wrong = Started(Converting(test_, request));
  const absl::Status refused = wrong->transport->WaitForEnd();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(refused.message().find("sampling.regex: "), 0U) << refused;
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
  EXPECT_TRUE(wrong->transport->events().empty());
  EXPECT_TRUE(test_.WaitIdle());
}

// A client with hard grammars waits for itself, and is refused in the end. A grammar that is kept
// does not wait.
TEST_F(CallTest, GrammarsWaitInTurnAndAClientsAreFew) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_regex("[0-9]{3}");
  const EventFormat::Convert known = Converting(test_, request);
  EXPECT_TRUE(Started(known)->transport->WaitForEnd().ok());
  std::promise<void> busy, go;
  const auto wait = [&](auto) {
    busy.set_value();
    go.get_future().wait();
    return true;
  };
  ASSERT_TRUE(test_.core->grammars().Post(/*client=*/0, {{}, "busy"}, wait).ok());
  busy.get_future().wait();
  std::vector<std::unique_ptr<RecordedCall>> calls;
  for (int i = 0; i < 5; ++i) {
    request.mutable_sampling()->set_regex(absl::StrCat("[a-z]{3}", i));
    calls.push_back(Started(Converting(test_, request, absl::StrCat("call", i))));
  }
  const absl::Status refused = calls[4]->transport->WaitForEnd();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const absl::Status found = Started(known)->transport->WaitForEnd();
  EXPECT_TRUE(found.ok()) << found;
  calls[0]->call->OnClosed(absl::CancelledError("left"));
  go.set_value();
  EXPECT_TRUE(absl::IsCancelled(calls[0]->transport->WaitForEnd()));
  EXPECT_TRUE(calls[1]->transport->WaitForEnd().ok());
  for (const size_t i : {2U, 3U}) {  // the engine's queue may be full by now
    const absl::Status end = calls[i]->transport->WaitForEnd();
    EXPECT_TRUE(end.ok() || absl::IsResourceExhausted(end)) << i << ": " << end;
  }
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(CallTest, AnAbandonedCallEndsThoughItsStepHangs) {
  const std::unique_lock<std::mutex> hang(test_.script->step);
  const auto recorded = Started(Converting(test_, GreedyRequest("stuck", 30)));
  while (test_.engine->HeartbeatAge() < 0.3) std::this_thread::yield();
  EXPECT_FALSE(test_.engine->Stop(0.01));
  AbandonCalls(*test_.core, absl::UnavailableError("the engine hangs"));
  EXPECT_TRUE(absl::IsUnavailable(recorded->transport->WaitForEnd()));
  EXPECT_TRUE(test_.core->registry().empty());
}

TEST_F(CallTest, ClosedDuringConversionEndsAtOnce) {
  std::promise<void> converting, gate;
  const EventFormat::Convert convert = Converting(test_, GreedyRequest("late", 3000));
  const auto recorded = Started([&](size_t prompt) {
    converting.set_value();
    gate.get_future().wait();
    return convert(prompt);
  });
  converting.get_future().wait();
  recorded->call->OnClosed(absl::CancelledError("gone"));
  EXPECT_TRUE(absl::IsCancelled(recorded->transport->WaitForEnd()));
  EXPECT_EQ(recorded->record->dropped, 0);  // the conversion uses it
  gate.set_value();
  EXPECT_TRUE(Eventually([&] { return recorded->record->dropped == 1; }));
  EXPECT_TRUE(recorded->transport->events().empty());
  EXPECT_TRUE(test_.WaitIdle());
}

// The engine, the lane and the reader each on a thread of their own.
TEST_F(CallTest, WritesTakenOnAnotherThreadLoseAndRepeatNothing) {
  constexpr uint32_t kTokens = 2000;
  RecordedCall recorded(*test_.core, Arriving(), Converting(test_, GreedyRequest("hello", kTokens)),
                        /*stream=*/true,
                        /*prompts=*/1, /*fast=*/false);
  recorded.Start();
  while (!recorded.transport->ended()) recorded.transport->TakeWrite();
  EXPECT_TRUE(recorded.transport->WaitForEnd().ok());
  EXPECT_EQ(recorded.transport->Text(), ExpectedText("hello", kTokens));
  recorded.transport->Release();
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(CallTest, ItsLineInTheLogTellsWhatOperatorsAsk) {
  ConfigureLog(LogLevel::kInfo, LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  test_.script->step_delay_us = 1000;
  v1::GenerateRequest request = GreedyRequest("hello", 30);
  request.mutable_sampling()->set_n(2);
  CallInfo info = Arriving();
  info.method = "GenerateStream";
  info.peer = "ipv4:127.0.0.1:7";
  RecordedCall recorded(*test_.core, std::move(info), Converting(test_, request));
  recorded.Start();
  EXPECT_TRUE(recorded.transport->WaitForEnd().ok());
  FlushLog(10);
  const nlohmann::json line = nlohmann::json::parse(::testing::internal::GetCapturedStderr());
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  EXPECT_EQ(line["event"], "request finished");
  EXPECT_EQ(line["request_id"], kId);
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
