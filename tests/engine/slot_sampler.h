// SlotSampler: the draws of one slot as an executor has to make them, from plans alone: the token
// states that a plan brings, a DrawRow for each token, and what was drawn before. Over the host's
// Sampler; nobody tells it what the request asked for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "engine/step_plan.h"

namespace fox {

class SlotSampler {
 public:
  void SetTokenStates(const std::vector<TokenEntry>& entries) {
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

  // Draws and, where the adjustment is on, counts the token.
  absl::StatusOr<SampledToken> Draw(const DrawRow& draw, const float* logits, Sampler& sampler) {
    SamplingParams params;
    params.temperature = draw.temperature;
    params.top_p = draw.top_p;
    params.min_p = draw.min_p;
    params.top_k = draw.top_k;
    params.logprobs = draw.logprobs;
    params.seed = draw.seed;
    const LogitAdjustment& adjustment = draw.adjustment;
    if (!adjustment.on) return sampler.Sample(logits, params, {}, {}, draw.position);
    params.logit_bias = bias_;
    if (adjustment.only_allowed) params.allowed_token_ids = allowed_;
    params.repetition_penalty = adjustment.repetition_penalty;
    params.presence_penalty = adjustment.presence_penalty;
    params.frequency_penalty = adjustment.frequency_penalty;
    const bool masks_stops = draw.position < adjustment.stops_from;
    absl::StatusOr<SampledToken> token = sampler.Sample(
        logits, params, counts_, masks_stops ? stops_ : std::vector<int32_t>(), draw.position);
    if (token.ok()) counts_.AddGenerated(token->id);
    return token;
  }

 private:
  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> allowed_, stops_;
  TokenCounts counts_;
};

}  // namespace fox
