// GenerationConfig: generation_config.json of a model directory, as written; absent or null keys
// stay unset. The reader checks ranges, because the engine's limits are not known here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fox {

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

}  // namespace fox
