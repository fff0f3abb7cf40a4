// fox-eval perplexity: the loss of a text, window by window, each from an empty context. The logits
// come from the serving path; log-softmax and sums are float64.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/eval/eval_command.h"
#include "engine/eval/teacher_forcing.h"
#include "engine/eval/text_tokens.h"
#include "engine/eval/token_loss.h"

namespace fox {
namespace {

struct PerplexityFlags {
  EvalFlags common;
  std::string text;
  int64_t window = 4096, max_windows = 0, start = 0, step = 0;
};

struct Loss {
  double nats = 0;
  int64_t tokens = 0;
  int64_t windows = 0;
};

// Tokens that the windows reach; -1: all there are.
int64_t TokensNeeded(const PerplexityFlags& flags) {
  if (flags.max_windows == 0) return -1;
  return flags.start + (flags.max_windows - 1) * flags.step + flags.window;
}

absl::StatusOr<Loss> Measure(ModelRunner& runner, const PerplexityFlags& flags,
                             const std::vector<int32_t>& ids) {
  TeacherForcingOptions options;
  options.chunk = flags.common.chunk;
  options.log_tolerance = flags.common.Tolerance(runner.weights().config);
  const auto length = static_cast<int64_t>(ids.size());
  int64_t windows = (length - flags.start - 2) / flags.step + 1;  // each has two tokens at least
  if (flags.max_windows > 0) windows = std::min(windows, flags.max_windows);
  const bool progress = isatty(STDERR_FILENO) != 0;
  if (progress) std::fprintf(stderr, "window 0 of %lld ", static_cast<long long>(windows));
  Loss loss;
  while (loss.windows < windows) {
    const int64_t begin = flags.start + loss.windows * flags.step;
    const int64_t end = std::min(begin + flags.window, length);
    const std::vector<int32_t> window(ids.begin() + begin, ids.begin() + end);
    std::vector<double> losses;
    const absl::Status run =
        RunTeacherForced(runner, window, options, [&](int64_t first, const MatrixView& logits) {
          AppendLosses(window, first, logits, &losses);
        });
    if (!run.ok()) return run;
    loss.nats = std::accumulate(losses.begin(), losses.end(), loss.nats);
    loss.tokens += std::ssize(losses);
    ++loss.windows;
    if (progress) {
      std::fprintf(stderr, "\rwindow %lld of %lld, loss %.4f ",
                   static_cast<long long>(loss.windows), static_cast<long long>(windows),
                   loss.nats / static_cast<double>(loss.tokens));
    }
  }
  if (progress) std::fputs("\r\033[K", stderr);
  return loss;
}

absl::Status Parse(const Arguments& arguments, PerplexityFlags& values) {
  FlagSet flags;
  constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
  values.common.Register(flags);
  flags.Group("Perplexity");
  flags.String(
      "text", "FILE",
      "UTF-8; documents are parted by a line with one zero byte, and each gets the model's bos "
      "and eos around it",
      &values.text);
  flags.Int("window", "W", "tokens a window; its first one is context only", 2, kMany,
            &values.window);
  flags.Int("max-windows", "N", "0: all", 0, kMany, &values.max_windows);
  flags.Int("start", "S", "where the first window starts, in tokens", 0, kMany, &values.start);
  flags.Int("step", "K", "tokens from one window's start to the next's; 0: the window", 0, kMany,
            &values.step);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-eval perplexity"); !s.ok()) return s;
  if (absl::Status s = Require(values.common.model, "model"); !s.ok()) return s;
  if (values.step == 0) values.step = values.window;
  return Require(values.text, "text");
}

}  // namespace

absl::Status EvalPerplexity(const Arguments& arguments) {
  PerplexityFlags flags;
  if (absl::Status s = Parse(arguments, flags); !s.ok()) return s;
  const auto config = ReadConfig(flags.common.model);
  if (!config.ok()) return config.status();
  const auto tokens = EncodeTextFile(flags.common.model, *config, flags.text, TokensNeeded(flags));
  if (!tokens.ok()) return tokens.status();
  const auto length = static_cast<int64_t>(tokens->ids.size());
  if (length < flags.start + 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.text, " has no two tokens from token ", flags.start, " on"));
  }
  const auto runner = LoadRunner(flags.common.Config(std::min(flags.window, length - flags.start)));
  if (!runner.ok()) return runner.status();
  const auto loss = Measure(**runner, flags, tokens->ids);
  if (!loss.ok()) return loss.status();
  const double nll = loss->nats / static_cast<double>(loss->tokens);
  // Over all documents that were encoded, so that a few windows of a long text are enough.
  const double tokens_per_byte =
      static_cast<double>(tokens->ids.size()) / static_cast<double>(tokens->bytes);
  nlohmann::ordered_json report;
  report["tokens"] = loss->tokens;
  report["nll"] = nll;
  report["perplexity"] = std::exp(nll);
  report["bits_per_byte"] = nll / std::log(2.0) * tokens_per_byte;
  report["windows"] = loss->windows;
  report["window"] = flags.window;
  report["bytes_per_token"] = 1 / tokens_per_byte;
  report["acp"] = flags.common.acp;
  report["log_tolerance"] = flags.common.Tolerance((*runner)->weights().config);  // off: null
  report["dtype"] = NameOf((*runner)->options().dtype);
  report["kv_dtype"] = NameOf((*runner)->options().kv_dtype);
  report["quantization"] = NameOf(flags.common.quantization);
  std::printf("%s\n", report.dump().c_str());
  return absl::OkStatus();
}

}  // namespace fox
