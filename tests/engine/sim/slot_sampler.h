// SlotSampler: samples for one slot as an executor does, from plans alone: from the token states of
// a plan, a SampleRow for each token, and the tokens sampled before. It uses the host's Sampler and
// does not know the request.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/request/sampler.h"
#include "engine/request/step_plan.h"

namespace fox {

class SlotSampler {
 public:
  void SetPenaltyState(const std::vector<PenaltyEntry>& entries) {
    *this = {};
    std::vector<int32_t> in_prompt;
    for (const auto& [id, state] : entries) {
      if (state.bias != 0.0f) bias_.emplace_back(id, state.bias);
      if (state.bits & kTokenAllowed) allowed_.push_back(id);
      if (state.bits & kTokenStops) stops_.push_back(id);
      if (state.bits & kTokenInPrompt) in_prompt.push_back(id);
    }
    counts_.AddPrompt(in_prompt);
    for (const auto& [id, state] : entries) {
      for (uint32_t i = 0; i < (state.bits & kTokenGenerated); ++i) counts_.AddGenerated(id);
    }
  }

  // Samples and, where the logits_processor is on, counts the token.
  absl::StatusOr<SampledToken> Sample(const SampleRow& sample, const float* logits,
                                      Sampler& sampler, const uint32_t* mask = nullptr) {
    SamplingParams params;
    params.temperature = sample.temperature;
    params.top_p = sample.top_p;
    params.min_p = sample.min_p;
    params.top_k = sample.top_k;
    params.logprobs = sample.logprobs;
    params.seed = sample.seed;
    const LogitsProcessorParams& logits_processor = sample.logits_processor;
    if (!logits_processor.on) return sampler.Sample(logits, params, {}, {}, sample.position);
    params.logit_bias = bias_;
    if (logits_processor.only_allowed) params.allowed_token_ids = allowed_;
    params.repetition_penalty = logits_processor.repetition_penalty;
    params.presence_penalty = logits_processor.presence_penalty;
    params.frequency_penalty = logits_processor.frequency_penalty;
    const bool masks_stops = sample.position < logits_processor.stops_from;
    absl::StatusOr<SampledToken> token =
        sampler.Sample(logits, params, counts_, masks_stops ? stops_ : std::vector<int32_t>(),
                       sample.position, mask);
    if (token.ok()) counts_.AddGenerated(token->id);
    return token;
  }

 private:
  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> allowed_, stops_;
  TokenCounts counts_;
};

}  // namespace fox
