// RunRequests: requests through an engine alone, without a server, and what their clients would see
// of it; and the texts that their prompts are cut from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/checkpoint/model_config.h"

namespace fox {

using Prompt = std::vector<int32_t>;

// The tokens of a file; where `path` is empty, of the model's own prompt_long.txt, or, without one
// or without a tokenizer, ids spread over the vocabulary.
absl::StatusOr<Prompt> TextOf(const std::string& model_dir, const ModelConfig& config,
                              const std::string& path);

// `count` tokens of the text from position `first` on; the text is repeated as often as need be.
Prompt TokensOfText(const Prompt& text, int64_t first, int64_t count);

// How requests arrive.
struct Pace {
  int64_t at_once = 1;  // in the engine at any time, at most
  int gap = 0;          // steps between two of them
  bool reversed = false;
};

// All in the order of the requests.
struct Served {
  double seconds = 0;  // from the first one's start to the last one's end
  std::vector<std::vector<SampledToken>> answers;
  std::vector<double> first_tokens;  // seconds from a request to its first token
  int64_t prompt_tokens = 0, answer_tokens = 0, preemptions = 0, swaps = 0;
  int64_t cached_tokens = 0;  // of prompts, that were not computed
};

// The engine has no other requests; it gives these their ids.
absl::StatusOr<Served> RunRequests(Engine& engine, std::vector<Request> requests, const Pace& pace);

}  // namespace fox
