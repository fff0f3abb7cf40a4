// EngineTest: an engine over the simulation's executor, with one step or two in flight, and what
// its clients receive.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/sim/fake_executor.h"
#include "tests/engine/sim/reference_model.h"

namespace fox {

using sim::Expected;
using sim::FakeExecutor;
using sim::FakeOptions;

inline FakeOptions Roomy() {
  FakeOptions options;
  options.limits.num_pages = 100;
  options.limits.lists_per_slot = 2;
  options.limits.max_num_seqs = 4;
  options.limits.max_model_len = 500;
  options.limits.max_num_batched_tokens = 128;
  options.limits.max_logit_rows = 32;
  options.limits.vocab_size = 50;
  return options;
}

inline Request MakeRequest(RequestId id, size_t prompt = 5, int32_t max_tokens = 8) {
  Request request;
  request.id = id;
  for (size_t i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>(i % 50));
  request.sampling.temperature = 0.0f;
  request.stop.max_tokens = max_tokens;
  return request;
}

// The outputs that a client has received.
struct Received {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> scores;
  std::optional<Finish> finish;
};

struct Pipeline {
  int depth = 1;
  bool samples_on_device = false;
  bool fixed_chunks = false;
};

inline std::string PipelineName(const testing::TestParamInfo<Pipeline>& test) {
  return "Depth" + std::to_string(test.param.depth) +
         (test.param.samples_on_device ? "Samples" : "") +
         (test.param.fixed_chunks ? "Chunks" : "");
}

class EngineTest : public testing::TestWithParam<Pipeline> {
 protected:
  void Start(FakeOptions fake = Roomy(), const EngineOptions& options = {}) {
    options_ = options;
    fake.limits.depth = GetParam().depth;
    fake.limits.samples_on_device = fake.limits.scores = GetParam().samples_on_device;
    if (GetParam().fixed_chunks) {  // as ModelRunner has them
      fake.limits.chunks = {128, /*fixed=*/true};
      const int64_t least = fake.limits.max_num_seqs + fake.limits.chunks.unit;
      fake.limits.max_num_batched_tokens = std::max(fake.limits.max_num_batched_tokens, least);
      fake.limits.max_logit_rows = std::max(fake.limits.max_logit_rows, least);
    }
    executor_ = std::make_unique<FakeExecutor>(fake);
    engine_ = std::make_unique<Engine>(options, *executor_);
  }
  void Step(Seconds now = 0) {
    for (RequestOutput& output : engine_->Step(now)) {
      Received& r = received_[output.id];
      EXPECT_FALSE(r.finish) << "an output after the end";
      for (const SampledToken& token : output.tokens) r.tokens.push_back(token.id);
      for (SampledToken& token : output.prompt_logprobs) r.scores.push_back(std::move(token));
      r.finish = std::move(output.finish);
    }
    executor_->Audit();
    EXPECT_EQ(executor_->violation(), "");
  }
  void RunToEnd(Seconds now = 0) {
    for (int i = 0; i < 10000 && engine_->HasWork(); ++i) Step(now);
    EXPECT_FALSE(engine_->HasWork());
  }
  Expected Reference(const Request& request) {
    return sim::RunReference(request, options_, executor_->options());
  }

  EngineOptions options_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Received> received_;
};

}  // namespace fox
