// ReferenceModel: what a request must produce, computed alone, token by token, without scheduler,
// slots, pages or chunks. Independent of everything under test but the pure functions of
// fake_executor.h and the sampler. Read simulation.h next.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/sim/fake_executor.h"

namespace fox::sim {

struct Expected {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> sampled;  // the same with their log-probabilities
  std::vector<SampledToken> prompt_logprobs;
  FinishReason reason = FinishReason::kLength;
  std::optional<int32_t> stop_token_id;
  bool eos = false;
  bool numerical_failure = false;  // after `tokens`
  bool exhausts_pool = false;      // even alone; it ends after a prefix of `tokens`
};

Expected RunReference(const Request& request, const EngineOptions& engine,
                      const FakeOptions& executor);

}  // namespace fox::sim
