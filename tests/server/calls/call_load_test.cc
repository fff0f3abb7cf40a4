// Call under load: the CPU time of a token, the memory of an open call, and how soon calls whose
// clients have left are gone.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/calls/planned_call.h"

namespace fox {
namespace {

constexpr int kManyCalls = 20000;

class ManyCallsTest : public ::testing::Test {
 protected:
  static TestCoreOptions Options() {
    TestCoreOptions options;
    options.max_num_seqs = 1024;
    options.max_num_queued_reqs = kManyCalls;
    options.max_queue_seconds = 0;
    options.limits.max_calls = 2 * kManyCalls;
    return options;
  }
  // Serializes as a stream does.
  struct Reader final : Transport {
    void Write(std::string taken) override {
      bytes += taken.size();
      ++writes;
      call.lock()->OnWritten();
    }
    void EndAnswer(const absl::Status&, std::string, int64_t) override {
      call.lock()->OnReleased();
      ended = true;
    }
    void AbandonReader(const absl::Status&) override {}

    size_t bytes = 0;
    int64_t writes = 0;
    std::weak_ptr<Call> call;
    std::atomic<bool> ended{false};
  };
  void StartAll(int calls, uint32_t tokens) {
    readers_.reserve(static_cast<size_t>(calls));
    for (int i = 0; i < calls; ++i) readers_.push_back(std::make_shared<Reader>());
    sim::CallPlan plan = StreamOf("prompt", static_cast<int32_t>(tokens));
    for (int i = 0; i < calls; ++i) {
      plan.prompts[0].request_id = std::to_string(i);
      CallInfo info;
      info.client = static_cast<uint64_t>(i % 64);
      const auto& reader = readers_[static_cast<size_t>(i)];
      const auto call = std::make_shared<Call>(
          *test_.core, std::move(info), Call::Work::kGenerate,
          std::make_unique<sim::SimFormat>(plan, QuietEnvironment::Get()), reader);
      reader->call = call;
      call->Start(/*bytes=*/1);
    }
  }
  void WaitForAll() {
    for (const auto& reader : readers_) {
      while (!reader->ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  TestCore test_{Options()};
  std::vector<std::shared_ptr<Reader>> readers_;
};

// Tells the CPU time of its lane's thread.
class LaneClock final : public SubmissionListener {
 public:
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput, Seconds) override {
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
TEST_F(ManyCallsTest, ATokenTakesTheDeliveryThreadsMicroseconds) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the speed of the program";
#endif
  constexpr int kCalls = 64;
  constexpr uint32_t kTokens = 1000;
  const int lanes = Options().limits.delivery_threads;
  const double before = CpuSeconds(test_.core->delivery(), lanes);
  StartAll(kCalls, kTokens);
  WaitForAll();
  // The prompt's event, each token, and the finish.
  for (size_t i = 0; i < readers_.size(); ++i) {
    ASSERT_EQ(readers_[i]->writes, kTokens + 2) << "reader " << i;
  }
  const double cpu = CpuSeconds(test_.core->delivery(), lanes) - before;
  const double microseconds = 1e6 * cpu / (kCalls * kTokens);
  RecordProperty("microseconds", std::to_string(microseconds));
  EXPECT_LT(microseconds, 6.7);
}

TEST_F(ManyCallsTest, AnOpenCallTakesLittleMemory) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the memory of the program";
#endif
  constexpr int kCalls = 4000;
  std::unique_lock<std::mutex> hang(test_.script->step);
  const size_t before = mallinfo2().uordblks;
  StartAll(kCalls, 100);
  while (test_.core->admission().queued() > 0) std::this_thread::yield();
  // The test weighs the calls in the engine's second step, before which the engine's thread has
  // taken all of them. A call that the engine's thread has taken needs a third more memory than one
  // that waits to be taken, and the number of calls that the first step finds depends on the
  // machine's load.
  const auto wait_until = [&](bool waits) {
    while (test_.script->step_waits != waits) std::this_thread::yield();
  };
  wait_until(true);
  hang.unlock();
  wait_until(false);
  hang.lock();
  wait_until(true);
  const size_t bytes = mallinfo2().uordblks - before;
  RecordProperty("bytes", std::to_string(bytes / kCalls));
  EXPECT_LT(bytes / kCalls, 5120u);
  hang.unlock();
  test_.engine->Stop();
  WaitForAll();
}

TEST_F(ManyCallsTest, CallsWhoseClientsLeaveAreGoneSoon) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the speed of the program";
#endif
  test_.script->step_delay_us = 20000;
  StartAll(kManyCalls, 1000);
  ASSERT_TRUE(Eventually([&] {
    const EngineStats stats = test_.engine->stats();
    return stats.running + stats.paused + stats.waiting == kManyCalls;
  }));
  const auto start = std::chrono::steady_clock::now();
  for (const auto& reader : readers_) reader->call.lock()->OnClosed(absl::CancelledError());
  EXPECT_TRUE(test_.WaitIdle());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_LT(seconds.count(), 1);
  WaitForAll();
}

}  // namespace
}  // namespace fox
