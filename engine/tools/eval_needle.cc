// fox-eval needle: whether a sentence hidden in a long text is found again, without pruning and
// under both bounds, by length and depth. What is asked is in needle.h.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/tools/eval_command.h"
#include "engine/tools/needle.h"
#include "engine/tools/teacher_forcing.h"
#include "engine/tools/token_loss.h"

namespace fox {
namespace {

struct NeedleFlags {
  EvalFlags common;
  std::string text, json;
  std::string lengths = "512,1024,2048,4096,8192", depths = "0.1,0.5,0.9";
  int64_t trials = 8;
};

// One cell of the table; without a depth the needle was left out.
struct Cell {
  int64_t length = 0;
  std::optional<double> depth;
};

struct Outcome {
  bool copied = false;  // greedy decoding gives the whole answer
  bool chosen = false;  // its first token beats those of the other answers
  double log_prob = 0;  // of the whole answer
  int64_t tokens = 0;   // of the prompt
};

absl::StatusOr<std::vector<double>> Numbers(const std::string& list, const char* flag, double most,
                                            bool whole) {
  std::vector<double> numbers;
  for (const auto part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !(number >= 0) || number > most ||
        (whole && number != std::floor(number))) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": '", std::string(part),
                                                     "' is no ", whole ? "whole " : "",
                                                     "number in [0, ", most, "]"));
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) return absl::InvalidArgumentError(absl::StrCat("--", flag, " is empty"));
  return numbers;
}

absl::StatusOr<std::vector<Cell>> Parse(const Arguments& arguments, NeedleFlags& values) {
  FlagSet flags;
  values.common.Register(flags);
  flags.Group("Needle");
  flags.String("text", "FILE", "UTF-8; its paragraphs are the haystack", &values.text);
  flags.String("lengths", "LIST", "tokens of question and haystack", &values.lengths);
  flags.String("depths", "LIST", "where the needle lies: 0 at the start, 1 at the end",
               &values.depths);
  flags.Int("trials", "N", "of each length and depth, with other answers and haystacks", 1, 1 << 20,
            &values.trials);
  flags.String("json", "FILE", "writes everything there", &values.json);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-eval needle"); !s.ok()) return s;
  if (flags.IsSet("acp")) return absl::InvalidArgumentError("--acp: all three run");
  if (absl::Status s = Require(values.common.model, "model"); !s.ok()) return s;
  if (absl::Status s = Require(values.text, "text"); !s.ok()) return s;
  const auto lengths = Numbers(values.lengths, "lengths", 1 << 24, true);
  if (!lengths.ok()) return lengths.status();
  const auto depths = Numbers(values.depths, "depths", 1, false);
  if (!depths.ok()) return depths.status();
  std::vector<Cell> cells;
  for (double length : *lengths) {
    for (double depth : *depths) cells.push_back({static_cast<int64_t>(length), depth});
    cells.push_back({static_cast<int64_t>(length), std::nullopt});
  }
  return cells;
}

absl::StatusOr<Outcome> Ask(ModelRunner& runner, const NeedlePrompt& asked,
                            const TeacherForcingOptions& base) {
  Outcome outcome;
  outcome.tokens = static_cast<int64_t>(asked.prompt.size());
  outcome.copied = true;
  std::vector<int32_t> ids = asked.prompt;
  ids.insert(ids.end(), asked.value.begin(), asked.value.end() - 1);
  TeacherForcingOptions options = base;
  options.decode_from = outcome.tokens;
  options.logits_from = outcome.tokens - 1;
  const absl::Status run =
      RunTeacherForced(runner, ids, options, [&](int64_t first, const MatrixView& logits) {
        for (int64_t row = 0; row < logits.rows; ++row) {
          const auto at = static_cast<size_t>(first + row - options.logits_from);
          outcome.log_prob -= TokenLoss(logits, row, asked.value[at]);
          // As long as the answer was right so far, this is what greedy decoding sees.
          outcome.copied = outcome.copied && BestToken(logits, row) == asked.value[at];
          if (at > 0) continue;
          const auto loss = [&](int32_t token) { return TokenLoss(logits, row, token); };
          const int32_t best =
              *std::min_element(asked.choices.begin(), asked.choices.end(),
                                [&](int32_t a, int32_t b) { return loss(a) < loss(b); });
          outcome.chosen = best == asked.value[0];
        }
      });
  if (!run.ok()) return run;
  return outcome;
}

// [cells * trials]
using Outcomes = std::vector<Outcome>;

absl::StatusOr<Outcomes> Measure(const NeedleFlags& flags, AcpMode mode,
                                 const NeedlePrompts& prompts, const std::vector<Cell>& cells) {
  int64_t longest = 0;
  for (const Cell& cell : cells) longest = std::max(longest, cell.length);
  EngineConfig config = flags.common.Config(longest);
  config.runner.acp = mode;
  const auto runner = LoadRunner(config);
  if (!runner.ok()) return runner.status();
  TeacherForcingOptions options;
  options.chunk = flags.common.chunk;
  options.log_tolerance =
      mode == AcpMode::kOff ? kNoMass : flags.common.Tolerance((*runner)->weights().config);
  const bool progress = isatty(STDERR_FILENO) != 0;
  Outcomes outcomes;
  for (const Cell& cell : cells) {
    for (int64_t trial = 0; trial < flags.trials; ++trial) {
      const auto prompt = prompts.Prompt(cell.length, cell.depth, trial);
      if (!prompt.ok()) return prompt.status();
      const auto outcome = Ask(**runner, *prompt, options);
      if (!outcome.ok()) return outcome.status();
      outcomes.push_back(*outcome);
      if (progress) {
        std::fprintf(stderr, "\r%s: %zu of %lld ", NameOf(mode), outcomes.size(),
                     static_cast<long long>(static_cast<int64_t>(cells.size()) * flags.trials));
      }
    }
  }
  if (progress) std::fputs("\r\033[K", stderr);
  return outcomes;
}

nlohmann::ordered_json CellsJson(const std::vector<Cell>& cells, const Outcomes& outcomes) {
  auto rows = nlohmann::ordered_json::array();
  const size_t trials = outcomes.size() / cells.size();
  const auto over = static_cast<double>(trials);
  for (size_t i = 0; i < cells.size(); ++i) {
    double tokens = 0, copied = 0, chosen = 0, log_prob = 0;
    for (size_t t = 0; t < trials; ++t) {
      const Outcome& outcome = outcomes[i * trials + t];
      tokens += static_cast<double>(outcome.tokens);
      copied += outcome.copied ? 1 : 0;
      chosen += outcome.chosen ? 1 : 0;
      log_prob += outcome.log_prob;
    }
    nlohmann::ordered_json row = {{"length", cells[i].length}, {"tokens", tokens / over}};
    row["depth"] = cells[i].depth ? nlohmann::ordered_json(*cells[i].depth) : nullptr;
    row["copied"] = copied / over;
    row["chosen"] = chosen / over;
    row["log_prob"] = log_prob / over;
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::ordered_json ModeJson(const std::vector<Cell>& cells, const Outcomes& outcomes,
                                const Outcomes& off) {
  double largest = 0;
  int64_t changed = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    largest = std::max(largest, std::abs(outcomes[i].log_prob - off[i].log_prob));
    changed += outcomes[i].copied != off[i].copied || outcomes[i].chosen != off[i].chosen ? 1 : 0;
  }
  return {{"changed_answers", changed},
          {"largest_log_prob_difference", largest},
          {"cells", CellsJson(cells, outcomes)}};
}

void Print(const nlohmann::ordered_json& report) {
  std::printf(
      "depth   where the sentence lies, 0 at the start; none: it was left out\n"
      "copied  share of trials in which greedy decoding gives the whole answer\n"
      "chosen  share in which the answer's first token beats those of the other answers\n"
      "log p   of the whole answer, in nats, mean over the trials\n");
  for (const auto& [mode, result] : report["modes"].items()) {
    std::printf("\n%s: %lld answers differ from off; log p of an answer by at most %.2e\n",
                mode.c_str(), static_cast<long long>(result["changed_answers"].get<int64_t>()),
                result["largest_log_prob_difference"].get<double>());
    std::printf("   length   depth   copied   chosen     log p\n");
    for (const auto& cell : result["cells"]) {
      const std::string depth =
          cell["depth"].is_null() ? "none" : absl::StrFormat("%.2f", cell["depth"].get<double>());
      std::printf("%9lld %7s %8.3f %8.3f %9.3f\n",
                  static_cast<long long>(cell["length"].get<int64_t>()), depth.c_str(),
                  cell["copied"].get<double>(), cell["chosen"].get<double>(),
                  cell["log_prob"].get<double>());
    }
  }
}

}  // namespace

absl::Status EvalNeedle(const Arguments& arguments) {
  NeedleFlags flags;
  const auto cells = Parse(arguments, flags);
  if (!cells.ok()) return cells.status();
  const auto model = ReadConfig(flags.common.model);
  if (!model.ok()) return model.status();
  const auto tokenizer = LoadTokenizer(flags.common.model, model->vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  if (*tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(flags.common.model, " holds no tokenizer"));
  }
  const auto text = ReadFile(flags.text);
  if (!text.ok()) return text.status();
  const auto bos = (*tokenizer)->info().bos_id ? (*tokenizer)->info().bos_id : model->bos_token_id;
  const auto prompts = NeedlePrompts::Make(**tokenizer, bos, *text);
  if (!prompts.ok()) {
    return absl::Status(prompts.status().code(),
                        absl::StrCat(flags.text, ": ", prompts.status().message()));
  }
  nlohmann::ordered_json report = {{"model", flags.common.model},
                                   {"dtype", flags.common.dtype},
                                   {"trials", flags.trials},
                                   {"needle", NeedlePrompts::Needle(0)},
                                   {"question", NeedlePrompts::Question()}};
  flags.common.acp = "certified";
  report["log_tolerance"] = flags.common.Tolerance(*model);
  Outcomes off;
  for (AcpMode mode : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
    const auto outcomes = Measure(flags, mode, *prompts, *cells);
    if (!outcomes.ok()) return outcomes.status();
    if (mode == AcpMode::kOff) off = *outcomes;
    report["modes"][NameOf(mode)] = ModeJson(*cells, *outcomes, off);
  }
  Print(report);
  return flags.json.empty() ? absl::OkStatus() : WriteJson(flags.json, report);
}

}  // namespace fox
