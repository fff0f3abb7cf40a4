// SamplingDefaults: what a request gets where it sets nothing: the values of fox/v1/inference.proto
// or, when the model directory has a generation_config.json, that file's. Read
// request_conversion.h next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/generation_config.h"

namespace fox {

struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  uint32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint32_t max_tokens = 256;
  std::vector<int32_t> eos_token_ids;  // beside those of config.json
};

// What `config` sets, checked against engine/request/sampling_limits.h. InvalidArgument names the
// key that is out of range.
absl::StatusOr<SamplingDefaults> SamplingDefaultsFrom(const GenerationConfig& config,
                                                      int64_t vocab_size);

// As JSON, for GetModelInfo.
std::string ToJson(const SamplingDefaults& defaults);

}  // namespace fox
