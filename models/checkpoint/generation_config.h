// The small files beside config.json: generation_config.json and fox_gain.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fox {

// generation_config.json as written; absent or null keys stay unset. The reader checks ranges,
// because the engine's limits are not known here.
struct GenerationConfig {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
  std::vector<int64_t> eos_token_ids;  // one or a list in the file
};

// Parses the text of a generation_config.json. Unknown keys are ignored (do_sample too: greedy is
// temperature 0). InvalidArgument names the key of the wrong type.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(const std::string& json);

// Reads `dir`/generation_config.json; nothing is set when there is none.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& dir);

// Reads the gain of the model from `dir`/fox_gain.json, which ./run gain writes: how far the
// log-probability of a token moves at most, to first order, for each unit of attention mass that
// rows lose (kernels/docs/acp.md, section 7). No value if there is no such file; InvalidArgument if
// its `gain` is no number above 0.
absl::StatusOr<std::optional<double>> LoadGain(const std::string& dir);

}  // namespace fox
