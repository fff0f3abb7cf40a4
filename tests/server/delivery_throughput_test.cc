// What it costs to make events of the engine's outputs, text on: CPU time of the delivery threads,
// without the engine and without gRPC.
#include <gtest/gtest.h>
#include <pthread.h>

#include <ctime>
#include <memory>
#include <vector>

#include "server/generation.h"
#include "tests/e2e/test_core.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kMaxSeconds = 200e-6;
#else
// Two cores make 150,000 tokens a second of it, with as much left for gRPC.
constexpr double kMaxSeconds = 6.7e-6;
#endif

namespace fox {
namespace {

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Serializes as a stream does.
class SerializingConsumer final : public GenerationConsumer {
 public:
  explicit SerializingConsumer(EngineThread& engine) : engine_(engine) {}
  void Deliver(v1::GenerateDelta event, RequestId sequence, int64_t count) override {
    bytes += event.SerializeAsString().size();
    if (count > 0) engine_.Acknowledge(sequence, count);
    tokens += count;
  }
  void Done(const absl::Status& status) override { EXPECT_TRUE(status.ok()) << status; }

  size_t bytes = 0;
  int64_t tokens = 0;

 private:
  EngineThread& engine_;
};

class CpuTimer final : public OutputReceiver {
 public:
  void Receive(RequestOutput, Seconds) override { cpu.push_back(ThreadCpuSeconds()); }
  std::vector<double> cpu;
};

TEST(DeliveryThroughputTest, ATokenTakesMicroseconds) {
  constexpr int kCalls = 64;
  constexpr uint32_t kTokens = 1000;
  TestCoreOptions options;
  options.max_num_seqs = kCalls;
  TestCore test(options);
  const int lanes = options.limits.delivery_threads;
  std::vector<std::shared_ptr<CpuTimer>> timers;
  const auto read_cpu = [&] {
    for (int i = 0; i < lanes; ++i) {
      if (timers.size() < static_cast<size_t>(lanes))
        timers.push_back(std::make_shared<CpuTimer>());
      test.core->delivery().Post(static_cast<size_t>(i), {timers[static_cast<size_t>(i)], {}, 0});
    }
  };
  read_cpu();
  std::vector<std::unique_ptr<SerializingConsumer>> consumers;
  CallInfo info;
  info.arrival = test.engine->Now();
  for (int i = 0; i < kCalls; ++i) {
    consumers.push_back(std::make_unique<SerializingConsumer>(*test.engine));
    const auto convert = [&test, i] {
      auto spec = ConvertGenerate(GreedyRequest("prompt", kTokens), true, test.core->context);
      if (spec.ok()) spec->request_id = std::to_string(i);
      return spec;
    };
    Generation::Start(*test.core, info, convert, consumers.back().get());
  }
  ASSERT_TRUE(test.WaitIdle());
  const double seconds = test.engine->Now() - info.arrival;
  read_cpu();
  int64_t tokens = 0;
  for (const auto& consumer : consumers) tokens += consumer->tokens;
  EXPECT_EQ(tokens, int64_t{kCalls} * kTokens);
  while (test.core->delivery().StuckFor() > 0) std::this_thread::yield();
  test.engine->Stop();
  test.core = nullptr;  // runs what is queued
  double cpu = 0;
  for (const auto& timer : timers) cpu += timer->cpu.at(1) - timer->cpu.at(0);
  const double each = cpu / static_cast<double>(tokens);
  std::printf("delivery: %.2f us of CPU a token; %.0f tokens/s with the engine beside it\n",
              each * 1e6, static_cast<double>(tokens) / seconds);
  EXPECT_LT(each, kMaxSeconds);
}

}  // namespace
}  // namespace fox
