// Engine: what clients see when a backend finds its page pool overdrawn and says so with the step's
// results. No token of that step is delivered, and nothing goes on.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/sim/fake_executor.h"
#include "tests/engine/sim/reference_model.h"

namespace fox {
namespace {

sim::FakeOptions SmallPool(int depth) {
  sim::FakeOptions fake;
  fake.limits.num_pages = 10;
  fake.limits.lists_per_slot = 2;
  fake.limits.max_num_seqs = 4;
  fake.limits.max_model_len = 500;
  fake.limits.max_num_batched_tokens = 128;
  fake.limits.max_logit_rows = 32;
  fake.limits.vocab_size = 50;
  fake.limits.depth = depth;
  fake.limits.samples_on_device = depth > 1;
  fake.bug = sim::Bug::kOverstateFree;  // so the scheduler breaks its promise
  fake.reports_pool_faults = true;
  return fake;
}

Request ShortRequest(RequestId id) {
  Request request;
  request.id = id;
  request.prompt = {1, 2, 3};
  request.sampling.temperature = 0.0f;
  request.stop.max_tokens = 300;
  return request;
}

class EnginePoolFaultTest : public testing::TestWithParam<int> {};

TEST_P(EnginePoolFaultTest, EndsEveryRequestWithUnavailable) {
  const EngineOptions options;
  sim::FakeExecutor executor(SmallPool(GetParam()));
  Engine engine(options, executor);
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, absl::Status> ends;
  for (const RequestId id : {RequestId{1}, RequestId{2}})
    ASSERT_TRUE(engine.Submit(ShortRequest(id), 0).ok());
  for (int step = 0; step < 1000 && engine.HasWork(); ++step) {
    for (const RequestOutput& output : engine.Step(0)) {
      for (const SampledToken& token : output.tokens) tokens[output.id].push_back(token.id);
      if (output.finish) ends[output.id] = output.finish->status;
    }
  }
  EXPECT_EQ(executor.violation(), "");
  EXPECT_EQ(engine.fatal(),
            absl::UnavailableError("page pool: a step took more pages than were free"));
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    EXPECT_TRUE(absl::IsUnavailable(ends[id])) << ends[id];
    const std::vector<int32_t> all =
        sim::RunReference(ShortRequest(id), options, executor.options()).tokens;
    ASSERT_LT(tokens[id].size(), all.size());
    EXPECT_TRUE(std::equal(tokens[id].begin(), tokens[id].end(), all.begin()));
  }
  EXPECT_TRUE(absl::IsUnavailable(engine.Submit(ShortRequest(3), 0)));
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, EnginePoolFaultTest, testing::Values(1, 2));

}  // namespace
}  // namespace fox
