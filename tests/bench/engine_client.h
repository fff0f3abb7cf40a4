// EngineClient: requests through an engine alone, without a server, and what their clients would
// see of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/flags/flag_set.h"
#include "models/model_config.h"

namespace fox {

using Prompt = std::vector<int32_t>;
using Clock = double (*)();

// --clock: the time that passes, or that of the processor.
void RegisterClock(FlagSet* flags, Clock* clock);

// The tokens of a file, of the model's own prompt_long.txt where `path` is empty.
absl::StatusOr<Prompt> EncodeText(const std::string& model_dir, const ModelConfig& config,
                                  const std::string& path);

// `count` tokens of the text from position `first` on; the text is repeated as often as need be.
Prompt TokensOfText(const Prompt& text, int64_t first, int64_t count);

// What some requests were for their clients.
struct Served {
  double seconds = 0;                // from the first one's start to the last one's end
  std::vector<double> first_tokens;  // seconds from a request to its first token, in their order
  int64_t prompt_tokens = 0, answer_tokens = 0;
  int64_t cached_tokens = 0;  // of prompts, that were not computed
};

class EngineClient {
 public:
  // Greedy answers of `answer` tokens each; `at_once` requests are in the engine at any time. The
  // engine must outlive the client and has no other. `clock`: what seconds are taken from.
  EngineClient(Engine& engine, int64_t answer, int64_t at_once, Clock clock)
      : engine_(engine), answer_(answer), at_once_(at_once), clock_(clock) {}

  // Runs the prompts, one after another where there is no room for more, with `salts` (for each
  // prompt, or none); gives their answers and adds what was seen to `served`.
  absl::StatusOr<std::vector<Prompt>> Run(const std::vector<Prompt>& prompts, Served* served,
                                          const std::vector<std::string>& salts = {});
  // Empties the prefix cache.
  void Flush();

 private:
  absl::Status Submit(const Prompt& prompt, const std::string& salt);

  Engine& engine_;
  const int64_t answer_, at_once_;
  const Clock clock_;
  RequestId next_id_ = 1;
  std::vector<double> submitted_;  // in the order of their ids, of this run
};

}  // namespace fox
