// Submits, steps, and notes the times. See engine_client.h.
#include "tests/bench/engine_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/eval/text_tokens.h"
#include "tests/bench/measurement.h"

namespace fox {

void RegisterClock(FlagSet* flags, Clock* clock) {
  flags->Enum<Clock>("clock", {{"wall", Now}, {"processor", ProcessorNow}},
                     "what times are taken from; processor: this process's, for the CPU backend "
                     "beside other programs, with one thread",
                     clock);
}

absl::StatusOr<Prompt> EncodeText(const std::string& model_dir, const ModelConfig& config,
                                  const std::string& path) {
  auto text = EncodeTextFile(model_dir, config,
                             path.empty() ? absl::StrCat(model_dir, "/prompt_long.txt") : path, -1);
  if (!text.ok()) return text.status();
  return std::move(text->ids);
}

Prompt TokensOfText(const Prompt& text, int64_t first, int64_t count) {
  Prompt tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = text[(static_cast<size_t>(first) + i) % text.size()];
  }
  return tokens;
}

absl::StatusOr<std::vector<Prompt>> EngineClient::Run(const std::vector<Prompt>& prompts,
                                                      Served* served,
                                                      const std::vector<std::string>& salts) {
  std::vector<Prompt> answers(prompts.size());
  std::vector<double> first_tokens(prompts.size());
  const RequestId base = next_id_;
  size_t ended = 0;
  submitted_.clear();
  const double start = clock_();
  while (ended < prompts.size()) {
    while (next_id_ - base < prompts.size() &&
           static_cast<int64_t>(next_id_ - base - ended) < at_once_) {
      const size_t next = next_id_ - base;
      absl::Status status = Submit(prompts[next], salts.empty() ? std::string() : salts[next]);
      if (!status.ok()) return status;
    }
    for (const RequestOutput& output : engine_.Step(Now())) {
      const size_t index = output.id - base;
      if (answers[index].empty() && !output.tokens.empty()) {
        first_tokens[index] = clock_() - submitted_[index];
      }
      for (const SampledToken& token : output.tokens) answers[index].push_back(token.id);
      if (!output.finish) continue;
      if (!output.finish->status.ok()) return output.finish->status;
      const RequestStats& stats = output.finish->stats;
      served->prompt_tokens += stats.prompt_tokens;
      served->answer_tokens += stats.completion_tokens;
      served->cached_tokens += stats.cached_tokens;
      ++ended;
    }
  }
  served->seconds += clock_() - start;
  served->first_tokens.insert(served->first_tokens.end(), first_tokens.begin(), first_tokens.end());
  return answers;
}

void EngineClient::Flush() {
  engine_.FlushPrefixCache();
  while (engine_.HasWork()) engine_.Step(Now());
}

absl::Status EngineClient::Submit(const Prompt& prompt, const std::string& salt) {
  Request request;
  request.id = next_id_++;
  request.prompt = prompt;
  request.cache_salt = salt;
  request.sampling.temperature = 0;
  request.stop.max_tokens = static_cast<int32_t>(answer_);
  request.stop.ignore_eos = true;
  submitted_.push_back(clock_());
  return engine_.Submit(std::move(request), Now());
}

}  // namespace fox
