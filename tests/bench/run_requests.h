// RunRequests: runs requests through an engine without a server and records answers and times as a
// client would see them; and the texts of prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/checkpoint/model_config.h"

namespace fox {

using Prompt = std::vector<int32_t>;

// The tokens of the file `path`, or of the model's prompt_long.txt if `path` is empty. Without that
// file or without a tokenizer: ids spread over the vocabulary.
absl::StatusOr<Prompt> TextOf(const std::string& model_dir, const ModelConfig& config,
                              const std::string& path);

// `count` tokens of the text from position `first` on; the text repeats.
Prompt TokensOfText(const Prompt& text, int64_t first, int64_t count);

// How requests arrive.
struct Pace {
  int64_t at_once = 1;  // most requests in the engine at a time
  int gap = 0;          // steps between two arrivals
  bool reversed = false;
};

// Results in the order of the requests.
struct Served {
  double seconds = 0;  // from the first start to the last end
  std::vector<std::vector<SampledToken>> answers;
  std::vector<double> first_tokens;  // seconds from a request to its first token
  int64_t prompt_tokens = 0, answer_tokens = 0, preemptions = 0;
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
};

// Requires an engine without other requests. Sets the requests' ids.
absl::StatusOr<Served> RunRequests(Engine& engine, std::vector<Request> requests, const Pace& pace);

}  // namespace fox
