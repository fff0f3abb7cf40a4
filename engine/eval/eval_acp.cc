// fox-eval acp: measures the pages that each head keeps of a text under the paper's and the
// certified bound, and the effect on the loss. acp_trace.h measures, acp_report.h makes text and
// JSON.
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/eval/acp_report.h"
#include "engine/eval/eval_command.h"
#include "engine/eval/teacher_forcing.h"
#include "engine/eval/text_tokens.h"
#include "engine/eval/token_loss.h"

namespace fox {
namespace {

// Tokens of a step in the run that shows rounding. Not a whole page, so that a GPU's products have
// other shapes.
constexpr int64_t kOtherChunk = 37;

struct Flags {
  EvalFlags common;
  std::string text, ids, json, sweep;
  int64_t tokens = 8192, windows = 1;
  std::vector<double> tolerances;  // of --sweep
};

absl::Status ParseSweep(Flags& values) {
  for (const auto part : absl::StrSplit(values.sweep, ',', absl::SkipEmpty())) {
    double log_tolerance = 0;
    if (!absl::SimpleAtod(part, &log_tolerance) || !(log_tolerance < 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sweep: '", std::string(part), "' is no negative number"));
    }
    values.tolerances.push_back(log_tolerance);
  }
  return absl::OkStatus();
}

absl::Status Parse(const Arguments& arguments, Flags& values) {
  FlagSet flags;
  values.common.Register(flags);
  flags.Group("Pruning");
  flags.String("text", "FILE", "UTF-8; documents are parted by a line with one zero byte",
               &values.text);
  flags.String("ids", "FILE", "in place of --text: JSON list of token ids", &values.ids);
  flags.Int("tokens", "N", "of a window; cut to whole pages of 64", kPageTokens, 1 << 24,
            &values.tokens);
  flags.Int("windows", "N", "windows whose loss is measured; heads are traced in the first", 1,
            1 << 20, &values.windows);
  flags.String("sweep", "LIST", "further log eps for the first window, in --json: -2,-5,-20",
               &values.sweep);
  flags.String("json", "FILE", "file for the whole report", &values.json);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-eval acp"); !s.ok()) return s;
  for (const char* unused : {"acp", "chunk"}) {
    if (!flags.IsSet(unused)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", unused, ": both bounds run, in steps of one page"));
  }
  if (absl::Status s = Require(values.common.model, "model"); !s.ok()) return s;
  if (values.text.empty() == values.ids.empty()) {
    return absl::InvalidArgumentError("one of --text and --ids is required");
  }
  return ParseSweep(values);
}

using Windows = std::vector<std::vector<int32_t>>;

// Windows of equal length, whole pages: as many as there are tokens for, at most --windows.
absl::StatusOr<Windows> ReadWindows(const Flags& flags, const ModelConfig& config) {
  std::vector<int32_t> ids;
  if (!flags.ids.empty()) {
    auto read = ReadIds(flags.ids);
    if (!read.ok()) return read.status();
    ids = std::move(*read);
  } else {
    auto text =
        EncodeTextFile(flags.common.model, config, flags.text, flags.tokens * flags.windows);
    if (!text.ok()) return text.status();
    ids = std::move(text->ids);
  }
  const int64_t size =
      std::min(static_cast<int64_t>(ids.size()), flags.tokens) / kPageTokens * kPageTokens;
  if (size == 0) return absl::InvalidArgumentError("fewer than 64 tokens: not one whole page");
  const int64_t count = std::min(static_cast<int64_t>(ids.size()) / size, flags.windows);
  Windows windows;
  for (int64_t w = 0; w < count; ++w) {
    windows.emplace_back(ids.begin() + w * size, ids.begin() + (w + 1) * size);
  }
  return windows;
}

// The losses without pruning and with products summed in another order.
absl::Status MeasureRounding(const Flags& flags, const Windows& windows, AcpReport& report) {
  EngineConfig config = flags.common.Config(report.loss.window);
  config.runner.acp = AcpMode::kOff;
  config.plain_gemm = !config.plain_gemm;
  const auto runner = LoadRunner(config);
  if (!runner.ok()) return runner.status();
  TeacherForcingOptions options;
  options.chunk = kOtherChunk;
  options.log_tolerance = kNoMass;
  for (const auto& window : windows) {
    const auto add_losses = [&](int64_t first, const MatrixView& logits) {
      AppendLosses(window, first, logits, &report.loss.rounding);
    };
    if (auto s = RunTeacherForced(**runner, window, options, add_losses); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Runs everything for one bound: the report's trace, the loss of every window, the sweep.
absl::Status Measure(const Flags& flags, const ModelConfig& model, AcpMode mode,
                     const Windows& windows, AcpReport& report) {
  EngineConfig config = flags.common.Config(report.loss.window);
  // The paper's bound drops nothing in a model that does not bound its logits, and is refused.
  const bool off =
      mode == AcpMode::kOff || (mode == AcpMode::kPaper && !model.qk_norm && !model.qk_norm_cap);
  config.runner.acp = off ? AcpMode::kOff : mode;
  const auto loaded = LoadRunner(config);
  if (!loaded.ok()) return loaded.status();
  ModelRunner& runner = **loaded;
  // The tolerance of a run; a run without pruning may lose no mass.
  const auto tolerance = [off](double log_tolerance) {
    if (off) log_tolerance = kNoMass;
    return log_tolerance;
  };
  auto& trace = mode == AcpMode::kOff     ? report.off
                : mode == AcpMode::kPaper ? report.paper
                                          : report.certified;
  auto& losses = mode == AcpMode::kOff     ? report.loss.off
                 : mode == AcpMode::kPaper ? report.loss.paper
                                           : report.loss.certified;
  for (size_t w = 0; w < windows.size(); ++w) {
    auto run = TraceAcp(runner, tolerance(report.log_tolerance), windows[w]);
    if (!run.ok()) return run.status();
    losses.insert(losses.end(), run->losses.begin(), run->losses.end());
    if (w == 0) trace = std::move(*run);
  }
  if (mode == AcpMode::kOff) return absl::OkStatus();
  report.sweep.resize(flags.tolerances.size());
  for (size_t i = 0; i < flags.tolerances.size(); ++i) {
    SweepPoint& point = report.sweep[i];
    point.log_tolerance = flags.tolerances[i];
    auto run = TraceAcp(runner, tolerance(point.log_tolerance), windows[0]);
    if (!run.ok()) return run.status();
    (mode == AcpMode::kPaper ? point.paper : point.certified) = std::move(*run);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EvalAcp(const Arguments& arguments) {
  Flags flags;
  if (absl::Status s = Parse(arguments, flags); !s.ok()) return s;
  const auto model = ReadConfig(flags.common.model);
  if (!model.ok()) return model.status();
  const auto windows = ReadWindows(flags, *model);
  if (!windows.ok()) return windows.status();

  AcpReport report;
  report.model = flags.common.model;
  report.dtype = flags.common.dtype;
  report.quantization = NameOf(flags.common.quantization);
  report.log_tolerance = flags.common.Tolerance(*model);
  report.loss.window = static_cast<int64_t>(windows->front().size());
  flags.common.chunk = kPageTokens;
  for (AcpMode mode : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
    if (absl::Status s = Measure(flags, *model, mode, *windows, report); !s.ok()) return s;
  }
  if (absl::Status s = MeasureRounding(flags, *windows, report); !s.ok()) return s;
  nlohmann::ordered_json json = report.Json();
  if (!flags.json.empty()) {
    if (absl::Status s = WriteJson(flags.json, json); !s.ok()) return s;
  }
  json.erase("heads");  // the table has them
  std::printf("%s\n\nEach head\n%s", json.dump(1).c_str(), report.Table().c_str());
  return absl::OkStatus();
}

}  // namespace fox
