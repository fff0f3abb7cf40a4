// How an engine behaves under load: overload with deadlines, clients that crowd others out, slow
// readers, long prompts. Whole minutes on a virtual clock.
#include <cmath>
#include <random>

#include "engine/schedule/policy.h"
#include "gtest/gtest.h"
#include "tests/engine/sim/load.h"

namespace fox {
namespace {

using sim::Load;
using sim::LoadCosts;
using sim::LoadLimits;
using sim::LoadRequest;

constexpr Seconds kWarm = 20, kEnd = 80;

// Requests at `rate` a second, whatever the answers, with deadlines of `deadline` seconds. Goodput:
// tokens a second that came in time.
class Overload {
 public:
  Overload(double rate, Seconds deadline, uint64_t clients = 1, const EngineOptions& options = {})
      : load_(options), rate_(rate), deadline_(deadline), clients_(clients) {
    Arrive();
    load_.Run(kEnd);
  }
  double Goodput() const {
    return static_cast<double>(load_.GoodTokens(kWarm, kEnd)) / (kEnd - kWarm);
  }
  const Load& load() const { return load_; }

 private:
  double Unit() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }
  void Arrive() {
    Request request =
        Load::MakeRequest(20 + static_cast<int64_t>(180 * Unit()),
                          static_cast<int32_t>(16 + 80 * Unit()), random_() % clients_);
    request.deadline = load_.now() + deadline_;
    load_.Send(std::move(request));
    load_.At(load_.now() - std::log(1 - Unit()) / rate_, [this] { Arrive(); });
  }

  Load load_;
  const double rate_;
  const Seconds deadline_;
  const uint64_t clients_;
  std::mt19937_64 random_{1};
};

TEST(EngineLoadTest, OverloadWithDeadlinesKeepsTheGoodput) {
  double peak = 0;
  for (const double rate : {15.0, 20.0, 25.0}) {
    peak = std::max(peak, Overload(rate, kNever).Goodput());
  }
  for (const uint64_t clients : {uint64_t{1}, uint64_t{7}}) {
    for (const double factor : {2.0, 5.0, 10.0}) {
      EXPECT_GE(Overload(20 * factor, 5.0, clients).Goodput(), 0.9 * peak)
          << factor << " x, clients " << clients;
    }
  }
}

TEST(EngineLoadTest, EstimatedWaitsAreTrue) {
  for (const double factor : {2.0, 10.0}) {
    SCOPED_TRACE(factor);
    const Overload overload(20 * factor, kNever);
    int64_t within = 0, all = 0;
    for (const auto& [id, request] : overload.load().requests()) {
      if (!request.admitted || request.sent < 5 || request.end == kNever) continue;
      const double wait = request.finish.stats.first_scheduled - request.sent;
      ++all;
      if (request.estimate > wait / 2 && request.estimate < 2 * wait) ++within;
    }
    EXPECT_GT(all, 100);
    EXPECT_GE(static_cast<double>(within), 0.95 * static_cast<double>(all));
  }
}

TEST(EngineLoadTest, TheQueueIsBoundedInSeconds) {
  EngineOptions options;
  options.max_queue_seconds = 3;
  const Overload overload(200, kNever, 1, options);
  Seconds longest = 0;
  int64_t refused = 0;
  for (const auto& [id, request] : overload.load().requests()) {
    SCOPED_TRACE(id);
    if (!request.admitted) {
      ++refused;
      EXPECT_TRUE(absl::IsResourceExhausted(request.refusal));
    } else if (request.sent > 5 && request.first_token < kNever) {
      longest = std::max(longest, request.first_token - request.sent);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(longest, 6);
  EXPECT_GT(longest, 1.5);
}

// A client that keeps `parallel` requests going.
class ClosedLoop {
 public:
  ClosedLoop(Load& load, uint64_t client, int parallel, int64_t prompt, int32_t tokens,
             int32_t priority = 0)
      : load_(load), client_(client), prompt_(prompt), tokens_(tokens), priority_(priority) {
    for (int i = 0; i < parallel; ++i) Send();
  }
  int64_t served() const { return served_; }
  int64_t refused() const { return refused_; }
  int64_t tokens() const { return served_ * tokens_; }
  Seconds longest() const { return longest_; }
  Seconds mean_first_token() const { return first_tokens_ / static_cast<double>(served_); }

 private:
  void Send() {
    Request request = Load::MakeRequest(prompt_, tokens_, client_);
    request.priority = priority_;
    load_.Send(std::move(request), [this](const LoadRequest& ended) {
      ++(ended.ok() ? served_ : refused_);
      if (ended.ok()) {
        longest_ = std::max(longest_, ended.end - ended.sent);
        first_tokens_ += ended.first_token - ended.sent;
      }
      load_.At(load_.now() + (ended.ok() ? 0.0 : 0.02), [this] { Send(); });
    });
  }

  Load& load_;
  const uint64_t client_;
  const int64_t prompt_;
  const int32_t tokens_;
  const int32_t priority_;
  int64_t served_ = 0, refused_ = 0;
  Seconds longest_ = 0, first_tokens_ = 0;
};

TEST(EngineLoadTest, AFloodOfOneClientLeavesOthersTheirTurns) {
  Load load;
  const ClosedLoop flood(load, 1, 400, 100, 50);
  load.Run(10);
  const ClosedLoop polite(load, 2, 1, 100, 50);
  load.Run(70);
  EXPECT_GE(polite.served(), 30);
  EXPECT_EQ(polite.refused(), 0);
  EXPECT_GT(flood.served(), 10 * polite.served());  // the flood gets the rest
  EXPECT_LT(polite.longest(), 4);
}

// One client's long answers, or long prompts, hold all running slots. Another client's requests
// have deadlines that are shorter than its queue, and are served in time all the same.
TEST(EngineLoadTest, OneClientDoesNotKeepAllRunningSlots) {
  for (const bool prompts : {false, true}) {
    SCOPED_TRACE(prompts);
    EngineOptions options;
    options.max_step_seconds = 0.1;
    options.max_queue_seconds = 0;
    const auto flood = [&](Load& load) {
      return ClosedLoop(load, 1, 60, prompts ? 8000 : 10, prompts ? 20 : 4000);
    };
    Load alone(options);
    const ClosedLoop undisturbed = flood(alone);
    alone.Run(160);
    Load load(options);
    const ClosedLoop disturbed = flood(load);
    std::vector<RequestId> sent;
    const std::function<void()> send = [&] {
      Request request = Load::MakeRequest(prompts ? 2000 : 10, 1, 2);
      request.deadline = load.now() + 4;
      sent.push_back(load.Send(std::move(request)));
      load.At(load.now() + 5, send);
    };
    load.At(40, send);
    load.Run(160);
    Seconds longest = 0;
    for (const RequestId id : sent) {
      const LoadRequest& request = load.requests().at(id);
      ASSERT_TRUE(request.ok()) << request.refusal << request.finish.status;
      longest = std::max(longest, request.finish.stats.first_scheduled - request.sent);
    }
    EXPECT_LT(longest, 2 * kSlotTurn + 2 * options.max_step_seconds);
    EXPECT_GE(disturbed.served(), 9 * undisturbed.served() / 10);
  }
}

TEST(EngineLoadTest, TurnsAreCountedInTokens) {
  Load load;
  const ClosedLoop long_prompts(load, 1, 60, 2000, 10);
  const ClosedLoop short_prompts(load, 2, 60, 50, 10);
  load.Run(120);
  const double long_tokens = static_cast<double>(long_prompts.served()) * (2000 + 40);
  const double short_tokens = static_cast<double>(short_prompts.served()) * (50 + 40);
  EXPECT_GT(short_tokens / long_tokens, 0.7);
  EXPECT_LT(short_tokens / long_tokens, 1.5);
}

TEST(EngineLoadTest, ALongPromptDoesNotHoldOthersUp) {
  ExecutorLimits limits = LoadLimits();
  limits.num_pages = 1000;  // 16,000 tokens; a long prompt needs a tenth of them
  LoadCosts costs;
  costs.kept_tokens = 1000;
  EngineOptions options;
  options.max_step_seconds = 0.05;
  Load alone(options, limits, costs);
  const ClosedLoop undisturbed(alone, 1, 8, 64, 64);
  alone.Run(60);
  Load load(options, limits, costs);
  const ClosedLoop others(load, 1, 8, 64, 64);
  load.Run(10);
  const ClosedLoop long_prompts(load, 1, 1, 15000, 4);
  load.Run(60);
  EXPECT_LT(others.mean_first_token(),
            2 * undisturbed.mean_first_token() + options.max_step_seconds);
  EXPECT_GE(long_prompts.served(), 3);
  // A long prompt that started alone and is larger than the pool does not, either.
  limits.num_pages = 500;
  Load first(options, limits, costs);
  const RequestId id = first.Send(Load::MakeRequest(15000, 4, 1));
  first.Run(0.2);
  const ClosedLoop later(first, 1, 4, 64, 64);
  first.Run(2);
  EXPECT_EQ(first.requests().at(id).end, kNever);
  EXPECT_GT(first.engine_stats().generated_tokens, 50);  // of the others
}

TEST(EngineLoadTest, TwoLongPromptsShareTheSteps) {
  EngineOptions options;
  options.max_queue_seconds = 0;
  Load load(options);
  RequestId longs[2];
  for (RequestId& id : longs) id = load.Send(Load::MakeRequest(16000, 4, 1));
  const ClosedLoop others(load, 1, 4, 64, 16);
  load.Run(40);
  EXPECT_LT(load.requests().at(longs[0]).end, 12);
  EXPECT_LT(load.requests().at(longs[1]).end, 16);
  EXPECT_LT(others.longest(), 6);  // sixteen tokens beside half of a step each
  EXPECT_GT(others.served(), 100);
}

// A client whose reader takes `rate` tokens a second, with a window of 64 tokens.
class SlowReader {
 public:
  SlowReader(Load& load, uint64_t client, int64_t prompt, double rate) : load_(load), rate_(rate) {
    Request request = Load::MakeRequest(prompt, 8000, client);
    request.flow_window = 64;
    id_ = load.Send(std::move(request));
    if (rate > 0) load.At(load.now() + 8 / rate, [this] { Read(); });
  }
  RequestId id() const { return id_; }

 private:
  void Read() {
    load_.engine().Acknowledge(id_, 8);
    load_.At(load_.now() + 8 / rate_, [this] { Read(); });
  }
  Load& load_;
  const double rate_;
  RequestId id_ = 0;
};

TEST(EngineLoadTest, SlowReadersOfLongPromptsCostLittle) {
  LoadCosts costs;
  costs.context_token = 4e-7;  // a decode at 6,000 tokens costs as much as six short ones
  const auto tokens = [&](int slow) {
    Load load({}, LoadLimits(), costs);
    std::vector<std::unique_ptr<SlowReader>> readers;
    for (int i = 0; i < slow; ++i) {
      readers.push_back(std::make_unique<SlowReader>(load, 100 + i % 2, 6000, 15.0));
    }
    load.Run(60);
    const ClosedLoop normal(load, 1, 16, 50, 100);
    load.Run(70);  // until slow readers are known
    const int64_t before = normal.tokens();
    load.Run(130);
    return normal.tokens() - before;
  };
  const int64_t alone = tokens(0), beside = tokens(20);
  EXPECT_GE(beside, 83 * alone / 100);
}

TEST(EngineLoadTest, SlowReadersThatCostLittleGetAllTheyRead) {
  constexpr double kRate = 40;
  Load load;
  const SlowReader reader(load, 100, 50, kRate);
  const ClosedLoop normal(load, 1, 8, 50, 100);
  load.Run(60);
  EXPECT_GE(load.requests().at(reader.id()).tokens, static_cast<int64_t>(0.9 * kRate * 60));
  EXPECT_GT(normal.served(), 500);
}

TEST(EngineLoadTest, StalledReadersTakeNothingAwayAndEnd) {
  EngineOptions options;
  options.stall_timeout = 30;
  Load load(options);
  std::vector<std::unique_ptr<SlowReader>> stalled;
  for (int i = 0; i < 250; ++i) {
    stalled.push_back(std::make_unique<SlowReader>(load, 7, 100, 0.0));
  }
  load.Run(20);
  EXPECT_EQ(load.engine().stats().paused, 250);
  EXPECT_EQ(load.engine().stats().waiting, 0);
  const ClosedLoop others(load, 1, 4, 100, 50);
  load.Run(28);
  EXPECT_GT(others.served(), 20);
  EXPECT_EQ(others.refused(), 0);
  EXPECT_LT(others.longest(), 1);
  load.Run(60);
  for (const auto& reader : stalled) {
    SCOPED_TRACE(reader->id());
    const LoadRequest& request = load.requests().at(reader->id());
    ASSERT_LT(request.end, kNever);
    EXPECT_TRUE(absl::IsAborted(request.finish.status)) << request.finish.status;
  }
  EXPECT_EQ(load.engine().stats().paused, 0);
  EXPECT_EQ(load.engine().stats().aborted, 250);
}

TEST(EngineLoadTest, StalledReadersMakeNoQueueLong) {
  EngineOptions options;
  options.max_paused_reqs = 1000;
  Load load(options);
  std::vector<std::unique_ptr<SlowReader>> stalled;
  std::vector<RequestId> probes;
  for (int i = 0; i < 250; ++i) {
    load.At(0.02 * i, [&] { stalled.push_back(std::make_unique<SlowReader>(load, 7, 100, 0.0)); });
    load.At(0.02 * i + 0.01, [&] {
      Request probe = Load::MakeRequest(10, 1, 8);
      probe.deadline = load.now() + 3;
      probes.push_back(load.Send(std::move(probe)));
    });
  }
  load.Run(10);
  for (const RequestId probe : probes) {
    const LoadRequest& request = load.requests().at(probe);
    ASSERT_TRUE(request.ok()) << "sent at " << request.sent << " " << request.refusal;
  }
}

// Each stalled reader is a client of its own, and its turn came before any newcomer's.
TEST(EngineLoadTest, StalledReadersOfManyClientsLetNewcomersIn) {
  EngineOptions options;
  options.stall_timeout = 4;
  Load load(options);
  const ClosedLoop before(load, 1000, 2, 4, 1);
  load.Run(2);
  std::vector<std::unique_ptr<SlowReader>> stalled;
  for (uint64_t i = 0; i < 272; ++i) {
    load.At(2 + 0.002 * static_cast<double>(i), [&load, &stalled, i] {
      stalled.push_back(std::make_unique<SlowReader>(load, i, 4, 0.0));
    });
  }
  std::vector<RequestId> probes;
  for (int i = 0; i < 60; ++i) {
    load.At(2 + 0.1 * i, [&] {
      Request probe = Load::MakeRequest(4, 1, 2000);
      probe.deadline = load.now() + 3;
      probes.push_back(load.Send(std::move(probe)));
    });
  }
  load.Run(20);
  for (const RequestId probe : probes) {
    SCOPED_TRACE(probe);
    const LoadRequest& request = load.requests().at(probe);
    EXPECT_TRUE(request.ok()) << "sent at " << request.sent << " " << request.refusal;
    EXPECT_LT(request.end - request.sent, 1.5);
  }
  for (const auto& reader : stalled) {
    const LoadRequest& request = load.requests().at(reader->id());
    EXPECT_GT(request.tokens, 0) << "starved: " << request.refusal;
  }
}

TEST(EngineLoadTest, StepsAreBoundedByTime) {
  LoadCosts costs;
  costs.prefill_token = 0.005;  // 512 tokens would take 2.5 s
  EngineOptions options;
  options.max_step_seconds = 0.25;
  Load load(options, LoadLimits(), costs);
  const ClosedLoop decoding(load, 1, 2, 10, 1000);
  load.Run(1);
  Seconds last = load.now(), longest = 0;
  load.on_tokens = [&](RequestId, int64_t) {
    longest = std::max(longest, load.now() - last);
    last = load.now();
  };
  load.Send(Load::MakeRequest(4000, 4, 2));
  load.Run(30);
  EXPECT_LT(longest, 0.45);  // a page takes 0.32 s
  EXPECT_GT(longest, 0.2);
}

}  // namespace
}  // namespace fox
