// Generation: a call's events in order, and each way in which a call ends before or while it runs.
#include "server/generation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/e2e/test_core.h"
#include "tests/server/recording_consumer.h"

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

  Generation::Convert Converting(const v1::GenerateRequest& request) {
    return [this, request] {
      ++conversions_;
      absl::StatusOr<GenerationSpec> spec =
          ConvertGenerate(request, /*stream=*/true, test_.core->context);
      if (spec.ok()) spec->request_id = kId;
      return spec;
    };
  }
  std::shared_ptr<Generation> Start(Generation::Convert convert, Seconds deadline = kNever) {
    info_.deadline = deadline;
    info_.arrival = test_.engine->Now();
    return Generation::Start(*test_.core, info_, std::move(convert), &consumer_);
  }
  // A call ended as it should: nothing was delivered, and nothing is left of it.
  void ExpectNothingDelivered() {
    EXPECT_TRUE(consumer_.events().empty());
    EXPECT_TRUE(test_.WaitIdle());
    EXPECT_EQ(test_.core->Find(kId), nullptr);
    CallInfo next;
    EXPECT_TRUE(test_.core->Admit(&next, 1).ok());
  }

  TestCore test_{SmallQueue()};
  RecordingConsumer consumer_{*test_.engine};
  CallInfo info_;
  std::atomic<int> conversions_{0};
};

TEST_F(GenerationTest, DeliversPromptThenTextThenOneFinishForEachSequence) {
  v1::GenerateRequest request = GreedyRequest("hello", 30);
  request.mutable_sampling()->set_n(2);
  request.mutable_output()->set_echo(true);
  Start(Converting(request));
  EXPECT_TRUE(consumer_.WaitDone().ok());
  const std::vector<v1::GenerateDelta> events = consumer_.events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].prompt().request_id(), kId);
  EXPECT_EQ(events[0].prompt().text(), "hello");
  EXPECT_EQ(events[0].prompt().token_ids_size(), 6);  // bos first
  bool ended[2] = {false, false};
  for (size_t i = 1; i < events.size(); ++i) {
    ASSERT_FALSE(events[i].has_prompt());
    const bool finish = events[i].has_finish();
    const uint32_t index = finish ? events[i].finish().index() : events[i].delta().index();
    ASSERT_LT(index, 2u);
    EXPECT_FALSE(ended[index]);
    ended[index] = finish;
  }
  EXPECT_TRUE(ended[0] && ended[1]);
  EXPECT_EQ(consumer_.Text(0), ExpectedText("hello", 30));
  EXPECT_EQ(consumer_.Text(1), ExpectedText("hello", 30));
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(GenerationTest, ARefusedSequenceRefusesTheWholeCall) {
  v1::GenerateRequest request = GreedyRequest("many", 30);
  request.mutable_sampling()->set_n(3);  // one more than the queue holds
  Start(Converting(request));
  EXPECT_TRUE(absl::IsResourceExhausted(consumer_.WaitDone()));
  ExpectNothingDelivered();
}

TEST_F(GenerationTest, ARunningIdIsRefused) {
  test_.script->step_delay_us = 2000;
  std::shared_ptr<Generation> running = Start(Converting(GreedyRequest("one", 3000)));
  while (test_.core->Find(kId) == nullptr) std::this_thread::yield();
  RecordingConsumer second(*test_.engine);
  CallInfo info;
  Generation::Start(*test_.core, info, Converting(GreedyRequest("two", 3)), &second);
  EXPECT_TRUE(absl::IsAlreadyExists(second.WaitDone()));
  EXPECT_TRUE(second.events().empty());
  EXPECT_EQ(test_.core->Find(kId), running);
  running->Cancel(absl::CancelledError("gone"));
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(GenerationTest, WhatItWasMadeFromIsLetGoOfBeforeItRuns) {
  const auto message = std::make_shared<v1::GenerateRequest>(GreedyRequest("hello", 3000));
  test_.script->step_delay_us = 2000;
  const Generation::Convert convert = Converting(*message);
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
  EXPECT_EQ(test_.core->Find(kId), nullptr);
}

TEST_F(GenerationTest, CancelledBeforeAdmissionIsNotConverted) {
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  test_.core->admission().Post(0, 0, [opened] { opened.wait(); });
  std::shared_ptr<Generation> call = Start(Converting(GreedyRequest("late", 30)));
  call->Cancel(absl::CancelledError("gone"));
  gate.set_value();
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  EXPECT_EQ(conversions_, 0);
  ExpectNothingDelivered();
}

TEST_F(GenerationTest, CancelledDuringConversionReachesTheEngine) {
  test_.script->step_delay_us = 2000;
  std::promise<void> converting, gate;
  const Generation::Convert convert = Converting(GreedyRequest("late", 3000));
  std::shared_ptr<Generation> call = Start([&] {
    converting.set_value();
    gate.get_future().wait();
    return convert();
  });
  converting.get_future().wait();
  call->Cancel(absl::OkStatus());  // as Abort does
  gate.set_value();
  EXPECT_TRUE(consumer_.WaitDone().ok());
  ASSERT_FALSE(consumer_.events().empty());
  EXPECT_EQ(consumer_.events().back().finish().reason(), v1::ABORT);
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(GenerationTest, DrainingDuringConversionRefuses) {
  const Generation::Convert convert = Converting(GreedyRequest("drain", 30));
  Start([&] {
    test_.core->Drain();
    return convert();
  });
  EXPECT_TRUE(absl::IsUnavailable(consumer_.WaitDone()));
  EXPECT_TRUE(consumer_.events().empty());
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(GenerationTest, APassedDeadlineIsNotConverted) {
  Start(Converting(GreedyRequest("late", 30)), test_.engine->Now() - 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(consumer_.WaitDone()));
  EXPECT_EQ(conversions_, 0);
  ExpectNothingDelivered();
}

TEST_F(GenerationTest, ConversionErrorsEndTheCall) {
  Start([] { return absl::InvalidArgumentError("no"); });
  EXPECT_TRUE(absl::IsInvalidArgument(consumer_.WaitDone()));
  ExpectNothingDelivered();
}

TEST_F(GenerationTest, AFailedEngineEndsTheCallOnce) {
  test_.script->step_delay_us = 1000;
  v1::GenerateRequest request = GreedyRequest("fail", 3000);
  request.mutable_sampling()->set_n(2);
  Start(Converting(request));
  while (consumer_.events().size() < 3) std::this_thread::yield();
  test_.script->fail = true;
  EXPECT_TRUE(absl::IsUnavailable(consumer_.WaitDone()));
  for (const v1::GenerateDelta& event : consumer_.events()) EXPECT_FALSE(event.has_finish());
  EXPECT_EQ(test_.core->Find(kId), nullptr);
}

}  // namespace
}  // namespace fox
