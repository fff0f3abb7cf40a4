// SamplingDefaults: from a generation_config.json, and as JSON. See request_conversion.h.
#include <limits>
#include <optional>

#include "engine/request/sampling_limits.h"
#include "nlohmann/json.hpp"
#include "server/calls/conversion/request_conversion.h"

namespace fox {
namespace {

constexpr Range kTopK{0, std::numeric_limits<int32_t>::max()};
constexpr Range kMaxTokens{1, std::numeric_limits<int32_t>::max()};

// Leaves `target` as it is if the file does not set the key.
template <typename T, typename Value>
absl::Status Take(const char* key, const std::optional<Value>& value, const Range& range,
                  T* target) {
  if (!value) return absl::OkStatus();
  absl::Status status = CheckRange(key, static_cast<double>(*value), range);
  if (!status.ok()) return status;
  *target = static_cast<T>(*value);
  return CheckRange(key, static_cast<double>(*target), range);  // as float32 too
}

// An id outside the vocabulary, -1 above all, is never sampled: transformers loads it, and it ends
// nothing.
absl::Status TakeEos(const std::vector<int64_t>& ids, int64_t vocab_size,
                     std::vector<int32_t>* target) {
  for (const int64_t id : ids) {
    if (id >= 0 && id < vocab_size) target->push_back(static_cast<int32_t>(id));
  }
  return CheckCount("eos_token_id", ids.size(), kMaxDefaultStopTokenIds);
}

}  // namespace

absl::StatusOr<SamplingDefaults> SamplingDefaultsFrom(const GenerationConfig& config,
                                                      int64_t vocab_size) {
  SamplingDefaults out;
  absl::Status status = Take("temperature", config.temperature, kTemperature, &out.temperature);
  status.Update(Take("top_p", config.top_p, kTopP, &out.top_p));
  status.Update(Take("min_p", config.min_p, kMinP, &out.min_p));
  status.Update(Take("repetition_penalty", config.repetition_penalty, kRepetitionPenalty,
                     &out.repetition_penalty));
  // -1: all tokens, as 0; vLLM's files have it.
  const auto top_k = config.top_k == -1 ? std::optional<int64_t>(0) : config.top_k;
  status.Update(Take("top_k", top_k, kTopK, &out.top_k));
  status.Update(Take("max_new_tokens", config.max_new_tokens, kMaxTokens, &out.max_tokens));
  status.Update(TakeEos(config.eos_token_ids, vocab_size, &out.eos_token_ids));
  if (status.ok()) return out;
  return absl::Status(status.code(), "generation_config.json: " + std::string(status.message()));
}

std::string ToJson(const SamplingDefaults& defaults) {
  return nlohmann::json{{"temperature", defaults.temperature},
                        {"top_p", defaults.top_p},
                        {"top_k", defaults.top_k},
                        {"min_p", defaults.min_p},
                        {"repetition_penalty", defaults.repetition_penalty},
                        {"max_tokens", defaults.max_tokens}}
      .dump();
}

}  // namespace fox
