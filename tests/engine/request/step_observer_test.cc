// Observers see every plan on its way out and back, in order, and every end.
#include "engine/request/step_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/engine.h"
#include "tests/engine/sim/fake_executor.h"

namespace fox {
namespace {

// Writes down the order of its calls and checks that plans come back as they left.
class Recorder : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override {
    calls += 's';
    in_flight.push_back(plan.DebugString());
  }
  void AfterSubmit(const StepPlan& plan) override {
    calls += 'S';
    EXPECT_EQ(plan.DebugString(), in_flight.back());
  }
  void BeforeCollect() override { calls += 'c'; }
  void AfterCollect(const StepPlan& plan, const StepResult& result) override {
    calls += 'C';
    EXPECT_EQ(plan.DebugString(), in_flight.front());
    EXPECT_EQ(result.stats.size(), plan.sequences.size());
    tokens += plan.num_tokens();
    in_flight.pop_front();
  }
  void OnFirstToken(RequestId id) override {
    EXPECT_EQ(finished.count(id), 0u);
    EXPECT_TRUE(started.insert(id).second);
  }
  void OnFinish(const Request& request, const Finish& finish) override {
    EXPECT_TRUE(finished.emplace(request.id, finish).second);
  }

  std::string calls;
  int64_t tokens = 0;
  std::deque<std::string> in_flight;
  std::set<RequestId> started;
  std::map<RequestId, Finish> finished;
};

sim::FakeOptions Options(int depth) {
  sim::FakeOptions options;
  options.limits.num_pages = 100;
  options.limits.lists_per_slot = 2;
  options.limits.max_num_seqs = 4;
  options.limits.max_model_len = 500;
  options.limits.max_num_batched_tokens = 16;
  options.limits.max_logit_rows = 16;
  options.limits.vocab_size = 50;
  options.limits.depth = depth;
  return options;
}

Request ObservedRequest(RequestId id) {
  Request request;
  request.id = id;
  request.prompt = {1, 2, 3, 4, 5};
  request.stop.max_tokens = 3;
  request.stop.ignore_eos = true;
  return request;
}

class StepObserverTest : public ::testing::TestWithParam<int> {};

TEST_P(StepObserverTest, SeesEveryPlanAndEveryEnd) {
  sim::FakeExecutor executor(Options(GetParam()));
  Recorder first, second;
  Engine engine(EngineOptions(), executor, {&first, &second});
  ASSERT_TRUE(engine.Submit(ObservedRequest(1), 0).ok());
  ASSERT_TRUE(engine.Submit(ObservedRequest(2), 0).ok());
  Request refused = ObservedRequest(3);
  refused.sampling.top_p = 0;
  EXPECT_FALSE(engine.Submit(refused, 0).ok());
  engine.Step(0);
  engine.Cancel(2, absl::CancelledError());
  for (int i = 0; i < 100 && engine.HasWork(); ++i) engine.Step(1);

  EXPECT_TRUE(first.in_flight.empty());
  const auto count = [&](char call) {
    return std::count(first.calls.begin(), first.calls.end(), call);
  };
  EXPECT_EQ(count('C'), engine.stats().steps);
  for (const char call : {'s', 'S', 'c'}) EXPECT_EQ(count(call), count('C')) << call;
  EXPECT_EQ(first.calls.rfind(GetParam() == 1 ? "sScC" : "sSsScC", 0), 0u) << first.calls;
  EXPECT_GE(first.tokens, 5 + 2 + 5);  // two prompts and what request 1 was fed of its own
  ASSERT_EQ(first.finished.size(), 2u);
  EXPECT_EQ(first.finished[1].stats.completion_tokens, 3);
  EXPECT_EQ(first.started.count(1), 1u);
  EXPECT_TRUE(absl::IsCancelled(first.finished[2].status));
  EXPECT_EQ(first.calls, second.calls);
}

INSTANTIATE_TEST_SUITE_P(Depths, StepObserverTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace fox
