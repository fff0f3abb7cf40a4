// generation_config.json to the defaults of requests: accepted values are in the ranges of
// requests, and they are the same when the file is written again with its keys in another order.
#include <nlohmann/json.hpp>
#include <string>

#include "engine/request/sampling_limits.h"
#include "models/checkpoint/generation_config.h"
#include "server/calls/conversion/request_conversion.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

constexpr int64_t kVocabSize = 1000;

absl::StatusOr<SamplingDefaults> Read(const std::string& text) {
  const absl::StatusOr<GenerationConfig> config = ParseGenerationConfig(text);
  if (!config.ok()) return config.status();
  return SamplingDefaultsFrom(*config, kVocabSize);
}

}  // namespace

FUZZ_TEST(generation_config) {
  const std::string text = in.Rest();
  const absl::StatusOr<SamplingDefaults> defaults = Read(text);
  if (!defaults.ok()) return CheckRefusal(defaults.status());
  FOX_CHECK(kTemperature.Contains(defaults->temperature));
  FOX_CHECK(kTopP.Contains(defaults->top_p));
  FOX_CHECK(kMinP.Contains(defaults->min_p));
  FOX_CHECK(kRepetitionPenalty.Contains(defaults->repetition_penalty));
  FOX_CHECK(defaults->top_k <= INT32_MAX);
  FOX_CHECK(defaults->max_tokens >= 1 && defaults->max_tokens <= INT32_MAX);
  FOX_CHECK(defaults->eos_token_ids.size() <= kMaxDefaultStopTokenIds);
  for (const int32_t id : defaults->eos_token_ids) FOX_CHECK(id >= 0 && id < kVocabSize);
  const absl::StatusOr<SamplingDefaults> again =
      Read(nlohmann::json::parse(text, nullptr, false).dump());
  FOX_CHECK(again.ok() && ToJson(*again) == ToJson(*defaults));
  FOX_CHECK(again->eos_token_ids == defaults->eos_token_ids);
}

}  // namespace fox
