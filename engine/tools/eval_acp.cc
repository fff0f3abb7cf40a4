// fox-eval acp: what each head keeps of a text under the paper's bound and under the certified one.
// Measuring is in acp_trace.h, text and JSON are in acp_report.h.
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/tools/acp_report.h"
#include "engine/tools/eval_command.h"
#include "engine/tools/text_tokens.h"

namespace fox {
namespace {

struct Flags {
  EvalFlags common;
  std::string text, ids, json;
  int64_t tokens = 8192;
};

absl::Status Parse(const Arguments& arguments, Flags& values) {
  FlagSet flags;
  values.common.Register(flags);
  flags.Group("Pruning");
  flags.String("text", "FILE", "UTF-8; documents are parted by a line with one zero byte",
               &values.text);
  flags.String("ids", "FILE", "in place of --text: JSON list of token ids", &values.ids);
  flags.Int("tokens", "N", "of the text; cut to whole pages of 64", kPageTokens, 1 << 24,
            &values.tokens);
  flags.String("json", "FILE", "writes everything there", &values.json);
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
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokens(const Flags& flags, const ModelConfig& config) {
  std::vector<int32_t> ids;
  if (!flags.ids.empty()) {
    auto read = ReadIds(flags.ids);
    if (!read.ok()) return read.status();
    ids = std::move(*read);
  } else {
    auto text = EncodeTextFile(flags.common.model, config, flags.text, flags.tokens);
    if (!text.ok()) return text.status();
    ids = std::move(text->ids);
  }
  const size_t pages = std::min(ids.size(), static_cast<size_t>(flags.tokens)) / kPageTokens;
  if (pages == 0) return absl::InvalidArgumentError("fewer than 64 tokens: not one whole page");
  ids.resize(pages * kPageTokens);
  return ids;
}

}  // namespace

absl::Status EvalAcp(const Arguments& arguments) {
  Flags flags;
  if (absl::Status s = Parse(arguments, flags); !s.ok()) return s;
  const auto model = ReadConfig(flags.common.model);
  if (!model.ok()) return model.status();
  const auto ids = Tokens(flags, *model);
  if (!ids.ok()) return ids.status();

  AcpReport report;
  report.model = flags.common.model;
  report.dtype = flags.common.dtype;
  report.log_tolerance = flags.common.Tolerance(*model);
  flags.common.chunk = kPageTokens;
  EngineConfig config = flags.common.Config(static_cast<int64_t>(ids->size()));
  for (AcpMode mode : {AcpMode::kPaper, AcpMode::kCertified}) {
    config.runner.acp = mode;
    auto trace = TraceAcp(config, report.log_tolerance, *ids);
    if (!trace.ok()) return trace.status();
    (mode == AcpMode::kPaper ? report.paper : report.certified) = std::move(*trace);
  }
  std::printf("%s, %lld tokens, log eps %g\n\n%s\nTotals\n%s\nSavings by head\n%s\n",
              flags.common.model.c_str(), static_cast<long long>(report.tokens()),
              report.log_tolerance, report.Table().c_str(), report.Totals().c_str(),
              report.Histogram().c_str());
  std::printf(
      "Boundaries over the decay matrix: a row is a block of queries, a column one of keys;\n"
      "# is kept, . is pruned\n\n%s",
      report.Boundaries().c_str());
  if (flags.json.empty()) return absl::OkStatus();
  std::ofstream out(flags.json);
  out << report.Json().dump(1) << '\n';
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + flags.json);
}

}  // namespace fox
