// Submits requests to an engine, runs its steps, and records times.
#include "tests/bench/run_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/eval/text_tokens.h"
#include "tests/bench/measurement.h"

namespace fox {

absl::StatusOr<Prompt> TextOf(const std::string& model_dir, const ModelConfig& config,
                              const std::string& path) {
  auto text = EncodeTextFile(model_dir, config,
                             path.empty() ? absl::StrCat(model_dir, "/prompt_long.txt") : path, -1);
  if (text.ok() && !text->ids.empty()) return std::move(text->ids);
  if (!path.empty()) {
    return text.ok() ? absl::InvalidArgumentError("--text: no text in " + path) : text.status();
  }
  Prompt ids(4096);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] =
        static_cast<int32_t>(static_cast<int64_t>(i * i * 7919 + i * 104729) % config.vocab_size);
  }
  return ids;
}

Prompt TokensOfText(const Prompt& text, int64_t first, int64_t count) {
  Prompt tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = text[(static_cast<size_t>(first) + i) % text.size()];
  }
  return tokens;
}

absl::StatusOr<Served> RunRequests(Engine& engine, std::vector<Request> requests,
                                   const Pace& pace) {
  const size_t count = requests.size();
  for (size_t i = 0; i < count; ++i) requests[i].id = i + 1;
  Served served;
  served.answers.resize(count);
  served.first_tokens.resize(count);
  std::vector<double> submitted(count);
  size_t next = 0, ended = 0;
  const double start = Now();
  for (int step = 0; ended < count; ++step) {
    while (next < count && static_cast<int64_t>(next - ended) < pace.at_once &&
           step % (pace.gap + 1) == 0) {
      const size_t index = pace.reversed ? count - 1 - next : next;
      ++next;
      submitted[index] = Now();
      if (absl::Status s = engine.Submit(std::move(requests[index]), Now()); !s.ok()) return s;
      if (pace.gap > 0) break;
    }
    for (const RequestOutput& output : engine.Step(Now())) {
      const size_t index = output.id - 1;
      std::vector<SampledToken>& answer = served.answers[index];
      if (answer.empty() && !output.tokens.empty()) {
        served.first_tokens[index] = Now() - submitted[index];
      }
      answer.insert(answer.end(), output.tokens.begin(), output.tokens.end());
      if (!output.finish) continue;
      if (!output.finish->status.ok()) return output.finish->status;
      const RequestStats& stats = output.finish->stats;
      served.prompt_tokens += stats.prompt_tokens;
      served.answer_tokens += stats.completion_tokens;
      served.cached_tokens += stats.cached_tokens;
      served.preemptions += stats.preemptions;
      ++ended;
    }
  }
  served.seconds = Now() - start;
  return served;
}

}  // namespace fox
