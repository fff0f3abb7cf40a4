// Generation: a call's events in order, and each way in which a call ends before or while it runs.
#include "server/calls/generation.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <regex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/process/log.h"
#include "tests/fixtures/test_core.h"
#include "tests/server/calls/recording_consumer.h"

namespace fox {
namespace {

constexpr char kId[] = "call";

class GenerationTest : public ::testing::Test {
 protected:
  static TestCoreOptions SmallQueue() {
    TestCoreOptions options;
    options.max_num_queued_reqs = 2;
    return options;
  }

  FunctionSource::Function Converting(const v1::GenerateRequest& request) {
    return [this, request] {
      ++conversions_;
      absl::StatusOr<GenerationSpec> spec =
          ConvertGenerate(request, /*stream=*/true, test_.core->context);
      if (spec.ok()) spec->request_id = kId;
      return spec;
    };
  }
  std::shared_ptr<Generation> Start(FunctionSource::Function convert,
                                    GenerationConsumer* consumer = nullptr) {
    info_.arrival = test_.engine->Now();
    return StartGeneration(*test_.core, info_, std::move(convert),
                           consumer == nullptr ? &consumer_ : consumer);
  }
  // The end of a call of which nothing is delivered and nothing is left.
  absl::Status Run(FunctionSource::Function convert) {
    RecordingConsumer consumer(*test_.engine);
    Start(std::move(convert), &consumer);
    absl::Status end = consumer.WaitDone();
    EXPECT_TRUE(consumer.events().empty());
    ExpectNothingLeft();
    return end;
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(test_.WaitIdle());
    EXPECT_TRUE(test_.core->Enter(/*tenant=*/0, kId, nullptr));
    test_.core->Leave(/*tenant=*/0, kId);
  }

  TestCore test_{SmallQueue()};
  RecordingConsumer consumer_{*test_.engine};
  CallInfo info_;
  std::atomic<int> conversions_{0};
};

TEST_F(GenerationTest, WhatIsRefusedDeliversNothingAndLeavesNothing) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  info_.deadline = test_.engine->Now() - 1;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Run(Converting(request))));
  EXPECT_EQ(conversions_, 0);
  info_.deadline = kNever;
  EXPECT_TRUE(absl::IsInvalidArgument(Run([] { return absl::InvalidArgumentError("no"); })));
  request.mutable_sampling()->set_n(3);  // one more than the queue ever holds
  EXPECT_TRUE(absl::IsOutOfRange(Run(Converting(request))));
  const FunctionSource::Function convert = Converting(GreedyRequest("drain", 30));
  EXPECT_TRUE(absl::IsUnavailable(Run([&] {
    test_.core->Drain();
    return convert();
  })));
}

TEST_F(GenerationTest, AnAnswerFollowsItsGrammar) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_regex("(yes|no)[0-9]{3}");
  for (int i = 0; i < 2; ++i) {  // compiled, and kept
    RecordingConsumer consumer(*test_.engine);
    Start(Converting(request), &consumer);
    ASSERT_TRUE(consumer.WaitDone().ok());
    std::string texts[2];
    for (const v1::GenerateDelta& event : consumer.events()) {
      if (event.has_delta()) texts[event.delta().index()] += event.delta().text();
      if (!event.has_finish()) continue;
      EXPECT_EQ(event.finish().reason(), v1::STOP);
    }
    for (const std::string& text : texts) {
      EXPECT_TRUE(std::regex_match(text, std::regex("(yes|no)[0-9]{3}"))) << text;
    }
    ExpectNothingLeft();
  }
  request.mutable_sampling()->set_regex("(");
  const absl::Status refused = Run(Converting(request));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(refused.message().find("sampling.regex: "), 0U) << refused;
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
}

// A client with hard grammars waits for itself, and is refused in the end.
// One that is kept does not wait.
TEST_F(GenerationTest, GrammarsWaitInTurnAndAClientsAreFew) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_regex("[0-9]{3}");
  const FunctionSource::Function known = Converting(request);
  RecordingConsumer first(*test_.engine), again(*test_.engine);
  Start(known, &first);
  EXPECT_TRUE(first.WaitDone().ok());
  std::promise<void> busy, go;
  const auto wait = [&](auto) {
    busy.set_value();
    go.get_future().wait();
    return true;
  };
  ASSERT_TRUE(test_.core->grammars().Post(info_.client, {{}, "busy"}, wait).ok());
  busy.get_future().wait();
  std::vector<std::unique_ptr<RecordingConsumer>> consumers;
  std::vector<std::shared_ptr<Generation>> calls;
  for (int i = 0; i < 5; ++i) {
    request.mutable_sampling()->set_regex(absl::StrCat("[a-z]{3}", i));
    const std::string id = absl::StrCat("call", i);
    consumers.push_back(std::make_unique<RecordingConsumer>(*test_.engine));
    const auto convert = [this, request, id] {
      auto spec = ConvertGenerate(request, /*stream=*/true, test_.core->context);
      spec->request_id = id;
      return spec;
    };
    calls.push_back(Start(convert, consumers.back().get()));
  }
  const absl::Status refused = consumers[4]->WaitDone();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  Start(known, &again);
  const absl::Status found = again.WaitDone();
  EXPECT_TRUE(found.ok()) << found;
  calls[0]->Cancel(absl::CancelledError("left"));
  go.set_value();
  EXPECT_TRUE(absl::IsCancelled(consumers[0]->WaitDone()));
  EXPECT_TRUE(consumers[1]->WaitDone().ok());
  for (const size_t i : {2U, 3U}) {  // the engine's queue may be full by now
    const absl::Status end = consumers[i]->WaitDone();
    EXPECT_TRUE(end.ok() || absl::IsResourceExhausted(end)) << end;
  }
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(GenerationTest, WhatItWasMadeFromIsLetGoOfBeforeItRuns) {
  const auto message = std::make_shared<v1::GenerateRequest>(GreedyRequest("hello", 3000));
  test_.script->step_delay_us = 2000;
  const FunctionSource::Function convert = Converting(*message);
  std::shared_ptr<Generation> call = Start([message, convert] { return convert(); });
  while (consumer_.events().size() < 2) std::this_thread::yield();
  EXPECT_EQ(message.use_count(), 1);
  call->Cancel(absl::CancelledError("gone"));
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
}

TEST_F(GenerationTest, AnAbandonedCallEndsThoughItsStepHangs) {
  const std::unique_lock<std::mutex> hang(test_.script->step);
  std::shared_ptr<Generation> call = Start(Converting(GreedyRequest("stuck", 30)));
  while (test_.engine->HeartbeatAge() < 0.3) std::this_thread::yield();
  EXPECT_FALSE(test_.engine->Stop(0.01));
  test_.core->AbandonAll(absl::UnavailableError("the engine hangs"));
  EXPECT_TRUE(absl::IsUnavailable(consumer_.WaitDone()));
  EXPECT_TRUE(test_.core->Enter(/*tenant=*/0, kId, nullptr));
}

TEST_F(GenerationTest, CancelledBeforeItsTurnEndsAtOnceAndItsMessageIsFreed) {
  std::promise<void> gate;
  test_.core->admission().Post(0, 0, [open = gate.get_future().share()] { open.wait(); });
  const auto message = std::make_shared<v1::GenerateRequest>(GreedyRequest("late", 30));
  const FunctionSource::Function convert = Converting(*message);
  std::shared_ptr<Generation> call = Start([message, convert] { return convert(); });
  call->Cancel(absl::CancelledError("gone"));
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  EXPECT_EQ(message.use_count(), 1);
  gate.set_value();
  EXPECT_EQ(conversions_, 0);
  EXPECT_TRUE(consumer_.events().empty());
  ExpectNothingLeft();
}

TEST_F(GenerationTest, CancelledDuringConversionEndsAtOnce) {
  std::promise<void> converting, gate, converted;
  const FunctionSource::Function convert = Converting(GreedyRequest("late", 3000));
  std::shared_ptr<Generation> call = Start([&] {
    converting.set_value();
    gate.get_future().wait();
    absl::StatusOr<GenerationSpec> spec = convert();
    converted.set_value();
    return spec;
  });
  converting.get_future().wait();
  call->Cancel(absl::CancelledError("gone"));
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  gate.set_value();
  converted.get_future().wait();
  EXPECT_TRUE(consumer_.events().empty());
  ExpectNothingLeft();
}

TEST_F(GenerationTest, ItsLineInTheLogTellsWhatOperatorsAsk) {
  ConfigureLog(LogLevel::kInfo, LogFormat::kJson);
  ::testing::internal::CaptureStderr();
  test_.script->step_delay_us = 1000;
  info_.method = "GenerateStream";
  info_.peer = "ipv4:127.0.0.1:7";
  v1::GenerateRequest request = GreedyRequest("hello", 30);
  request.mutable_sampling()->set_n(2);
  Start(Converting(request));
  EXPECT_TRUE(consumer_.WaitDone().ok());
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

// Many calls at once.
class ManyGenerationsTest : public ::testing::Test {
 protected:
  // Serializes as a stream does.
  class Reader final : public GenerationConsumer {
   public:
    explicit Reader(EngineThread& engine) : engine_(engine) {}
    absl::Status Deliver(size_t, v1::GenerateDelta event, RequestId sequence,
                         int64_t count) override {
      bytes += event.SerializeAsString().size();
      if (count > 0) engine_.Acknowledge(sequence, count);
      tokens += count;
      return absl::OkStatus();
    }
    void Done(const absl::Status&) override { ended = true; }

    size_t bytes = 0;
    int64_t tokens = 0;
    std::atomic<bool> ended{false};

   private:
    EngineThread& engine_;
  };

  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.max_num_seqs = 64;
    options.max_num_queued_reqs = 10000;
    return options;
  }
  void StartAll(int calls, uint32_t tokens) {
    readers_.reserve(static_cast<size_t>(calls));
    for (int i = 0; i < calls; ++i) readers_.push_back(std::make_unique<Reader>(*test_.engine));
    for (int i = 0; i < calls; ++i) {
      const auto convert = [this, i, tokens] {
        auto spec = ConvertGenerate(GreedyRequest("prompt", tokens), true, test_.core->context);
        if (spec.ok()) spec->request_id = std::to_string(i);
        return spec;
      };
      StartGeneration(*test_.core, info_, convert, readers_[static_cast<size_t>(i)].get());
    }
  }

  void WaitForAll() {
    for (const auto& reader : readers_) {
      while (!reader->ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  CallInfo info_;
  TestCore test_{Options()};
  std::vector<std::unique_ptr<Reader>> readers_;
};

// Tells the CPU time of its lane's thread.
class LaneClock final : public OutputReceiver {
 public:
  void Receive(RequestOutput, Seconds) override {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    seconds.set_value(static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec));
  }
  std::promise<double> seconds;
};

double CpuSeconds(DeliveryPool& pool, int lanes) {
  double sum = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    const auto clock = std::make_shared<LaneClock>();
    pool.Post(static_cast<size_t>(lane), {clock, {}, 0});
    sum += clock->seconds.get_future().get();
  }
  return sum;
}

// Two threads make 150,000 tokens a second of it, text on, and leave half of their time to gRPC.
TEST_F(ManyGenerationsTest, ATokenTakesTheDeliveryThreadsMicroseconds) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the speed of the program";
#endif
  constexpr int kCalls = 64;
  constexpr uint32_t kTokens = 1000;
  const int lanes = Options().limits.delivery_threads;
  const double before = CpuSeconds(test_.core->delivery(), lanes);
  StartAll(kCalls, kTokens);
  WaitForAll();
  for (const auto& reader : readers_) EXPECT_EQ(reader->tokens, kTokens);
  const double cpu = CpuSeconds(test_.core->delivery(), lanes) - before;
  const double microseconds = 1e6 * cpu / (kCalls * kTokens);
  RecordProperty("microseconds", std::to_string(microseconds));
  EXPECT_LT(microseconds, 6.7);
}

TEST_F(ManyGenerationsTest, AnOpenCallTakesLittleMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the memory of the program";
#endif
  constexpr int kCalls = 4000;
  std::unique_lock<std::mutex> hang(test_.script->step);
  const size_t before = mallinfo2().uordblks;
  StartAll(kCalls, 100);
  while (test_.core->admission().queued() > 0) std::this_thread::yield();
  const size_t bytes = mallinfo2().uordblks - before;
  RecordProperty("bytes", std::to_string(bytes / kCalls));
  EXPECT_LT(bytes / kCalls, 4096u);
  hang.unlock();
  test_.engine->Stop();
  WaitForAll();
}

}  // namespace
}  // namespace fox
