// Observers see every plan on its way out and back, in order, and every end.
#include "engine/request/step_observer.h"

#include <deque>
#include <map>
#include <set>
#include <string>

#include "tests/engine/engine_fixture.h"

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

class StepObserverTest : public ::testing::TestWithParam<int> {};

TEST_P(StepObserverTest, SeesEveryPlanAndEveryEnd) {
  FakeOptions options = Roomy();
  options.limits.depth = GetParam();
  FakeExecutor executor(options);
  Recorder first, second;
  Engine engine(EngineOptions(), executor, {&first, &second});
  ASSERT_TRUE(engine.Submit(MakeRequest(1, 5, 3), 0).ok());
  ASSERT_TRUE(engine.Submit(MakeRequest(2, 5, 3), 0).ok());
  Request refused = MakeRequest(3);
  refused.sampling.top_p = 2;
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
