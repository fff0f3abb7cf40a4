// fox-bench serve: an open-loop load on a server (arrivals.h). Reports percentiles of the time to
// the first token and between tokens, throughput and errors. With --compare it starts a server for
// each bound, one after the other, sends the same arrivals to each, and prints their ratios.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "fox/v1/info.grpc.pb.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/bench/arrivals.h"
#include "tests/bench/bench_session.h"
#include "tests/fixtures/child_process.h"

namespace fox {
namespace {

constexpr double kStartSeconds = 120, kEndSeconds = 30;

struct ServeFlags {
  std::string target = "127.0.0.1:50051", rates = "1,2,4", json;
  std::string prompt = "256-4096", output = "32-512", text;
  int64_t requests = 64, seed = 1;
  double timeout = 120;
  std::string compare, model = FOX_SOURCE_DIR "/models/demo", device = "auto";
  // The parsed values.
  TokenRange prompt_tokens, output_tokens;
  std::vector<double> rate_list;
  std::vector<AcpMode> modes;             // of --compare
  std::vector<std::string> server_flags;  // the arguments after "--"
};

absl::Status ParseLists(ServeFlags* values) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(values->rates, ','))) {
    if (!absl::SimpleAtod(part, &values->rate_list.emplace_back()) ||
        !(values->rate_list.back() > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rates: \"", values->rates, "\" is not a list such as 1,2,4"));
    }
  }
  if (values->compare.empty()) return absl::OkStatus();
  const auto modes = ParseModes(values->compare, "compare");
  if (modes.ok()) values->modes = *modes;
  return modes.status();
}

absl::Status Parse(const std::vector<std::string>& arguments, ServeFlags* values) {
  FlagSet flags;
  flags.Group("Load");
  flags.String("target", "HOST:PORT", "a server on this machine", &values->target);
  flags.String("rates", "LIST", "requests a second, one run each", &values->rates);
  flags.Int("requests", "N", "requests of one run", 1, 10000, &values->requests);
  flags.String("prompt-tokens", "N|A-B", "prompt lengths", &values->prompt);
  flags.String("output-tokens", "N|A-B", "answer lengths", &values->output);
  flags.String("text", "FILE", "text to cut prompts from, in --model's tokens [random tokens]",
               &values->text);
  flags.Double("timeout", "SECONDS", "deadline of a request", 0.1, 3600, &values->timeout);
  flags.Int("seed", "N", "seed of arrivals, lengths and tokens", 0, 1 << 30, &values->seed);
  flags.String("json", "FILE", "file for all rows", &values->json);
  flags.Group("Servers that fox-bench starts itself; arguments after -- are their flags");
  flags.String("compare", "LIST", "bounds such as off,certified: one server each, in this order",
               &values->compare);
  flags.String("model", "DIR", "model of the servers", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  const auto rest = std::find(arguments.begin(), arguments.end(), "--");
  if (rest != arguments.end()) values->server_flags.assign(rest + 1, arguments.end());
  absl::Status status = ParseOrHelp(flags, {arguments.begin(), rest}, "fox-bench serve");
  if (!status.ok()) return status;
  if (!values->server_flags.empty() && values->compare.empty()) {
    return absl::InvalidArgumentError("arguments after -- are flags of servers of --compare");
  }
  const auto prompt = ParseTokenRange(values->prompt, "prompt-tokens");
  if (!prompt.ok()) return prompt.status();
  const auto output = ParseTokenRange(values->output, "output-tokens");
  if (!output.ok()) return output.status();
  values->prompt_tokens = *prompt, values->output_tokens = *output;
  return ParseLists(values);
}

nlohmann::ordered_json Percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(share * static_cast<double>(values.size())))];
  };
  return {{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", values.back()}};
}

double P(const nlohmann::ordered_json& percentiles, const char* name) {
  return percentiles.is_null() ? NAN : 1e3 * percentiles[name].get<double>();
}

// Sums over all clients of one run.
struct Totals {
  std::vector<double> first, gaps, whole, late;
  std::map<int, int> errors;
  // lost: neither completed nor refused.
  int64_t completed = 0, refused = 0, lost = 0, preempted = 0;
  int64_t tokens = 0, missing = 0, repeated = 0;
};

Totals Add(const std::vector<Outcome>& outcomes) {
  Totals sum;
  for (const Outcome& outcome : outcomes) {
    sum.late.push_back(outcome.late);
    sum.tokens += outcome.tokens;
    if (!outcome.completed()) {
      ++sum.errors[outcome.code];
      ++(outcome.refused() ? sum.refused : sum.lost);
      continue;
    }
    ++sum.completed;
    sum.missing += outcome.missing;
    sum.repeated += outcome.repeated;
    sum.preempted += outcome.preemptions > 0 ? 1 : 0;
    sum.first.push_back(outcome.first_token);
    sum.whole.push_back(outcome.total);
    sum.gaps.insert(sum.gaps.end(), outcome.gaps.begin(), outcome.gaps.end());
  }
  return sum;
}

constexpr char kColumns[] =
    "      acp  rate/s     ok refused lost preempted running kept  seconds  tokens/s  TTFT p50"
    "       p90       p99  ITL p50      p90      p99 (ms)";

void Report(const std::string& acp, double rate, const ServedArrivals& served,
            BenchReport* report) {
  const Totals sum = Add(served.outcomes);
  auto errors = nlohmann::ordered_json::object();
  for (const auto& [code, count] : sum.errors) errors[absl::StrCat("grpc_", code)] = count;
  const auto ttft = Percentiles(sum.first), itl = Percentiles(sum.gaps);
  const double pace = static_cast<double>(sum.tokens) / served.seconds;
  report->Row(
      absl::StrFormat(
          "%9s %7.2f %6d %7d %4d %9d %7d %4d %8.1f %9.1f %9.1f %9.1f %9.1f %8.2f %8.2f %8.2f", acp,
          rate, sum.completed, sum.refused, sum.lost, sum.preempted, served.most_running,
          served.MostKept(), served.seconds, pace, P(ttft, "p50"), P(ttft, "p90"), P(ttft, "p99"),
          P(itl, "p50"), P(itl, "p90"), P(itl, "p99")),
      {{"bench", "serve"},
       {"acp", acp},
       {"rate", rate},
       {"completed", sum.completed},
       {"errors", errors},
       {"refused", sum.refused},
       {"lost", sum.lost},
       {"missing_tokens", sum.missing},
       {"repeated_tokens", sum.repeated},
       {"preempted", sum.preempted},
       {"most_running", served.most_running},
       {"most_kept", served.MostKept()},
       {"most_kept_bytes", served.most_kept_bytes},
       {"seconds", served.seconds},
       {"output_tokens_per_second", pace},
       {"time_to_first_token", ttft},
       {"inter_token_latency", itl},
       {"end_to_end", Percentiles(sum.whole)},
       {"sent_late", Percentiles(sum.late)}});
  if (sum.missing + sum.repeated > 0) {
    report->Note(
        absl::StrFormat("%d tokens are missing, %d are repeated", sum.missing, sum.repeated));
  }
}

// Calls a method of fox.v1.Info with a deadline of ten seconds.
template <typename Request, typename Answer>
absl::Status Ask(v1::Info::Stub& stub,
                 grpc::Status (v1::Info::Stub::*ask)(grpc::ClientContext*, const Request&, Answer*),
                 const std::string& target, Answer* answer) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::Status asked = (stub.*ask)(&context, Request(), answer);
  if (asked.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(target, ": ", asked.error_message()));
}

absl::StatusOr<Prompt> ReadText(const ServeFlags& flags) {
  if (flags.text.empty()) return Prompt();
  const auto checkpoint = Checkpoint::Open(flags.model, {});
  if (!checkpoint.ok()) return checkpoint.status();
  return TextOf(flags.model, checkpoint->config(), flags.text);
}

// Measures all rates on one server. Writes the JSON after each, so that a failure keeps the rows.
absl::Status Measure(const ServeFlags& flags, const std::string& target, BenchReport* report) {
  const auto text = ReadText(flags);
  if (!text.ok()) return text.status();
  const auto stub = v1::Info::NewStub(ConnectTo(target));
  v1::ModelInfo model;
  v1::ServerInfo server;
  absl::Status status = Ask(*stub, &v1::Info::Stub::GetModelInfo, target, &model);
  if (status.ok()) status = Ask(*stub, &v1::Info::Stub::GetServerInfo, target, &server);
  if (!status.ok()) return status;
  report->facts()["backend"] = server.device();
  const std::string acp = absl::AsciiStrToLower(v1::AcpMode_Name(server.acp_mode()));
  for (const double rate : flags.rate_list) {
    const std::vector<PlannedRequest> plan =
        PlanArrivals(flags.requests, rate, flags.prompt_tokens, flags.output_tokens,
                     static_cast<uint64_t>(flags.seed));
    Report(acp, rate, SendArrivals(target, plan, {model.vocab_size(), *text}, flags.timeout),
           report);
    if (absl::Status s = report->Write(flags.json); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The last line of the output of a server that did not start.
std::string LastLine(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  return lines.empty() ? "no output" : lines.back();
}

// Starts the fox-server in this program's folder, measures it, and ends it.
absl::Status MeasureOwn(const ServeFlags& flags, const std::string& mode, BenchReport* report) {
  std::error_code error;
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "fox-server";
  ChildStart start;
  start.arguments = {program.string(),         "--host=127.0.0.1", "--grpc-port=0",
                     "--model=" + flags.model, "--acp=" + mode,    "--device=" + flags.device,
                     "--log-level=warning"};
  start.arguments.insert(start.arguments.end(), flags.server_flags.begin(),
                         flags.server_flags.end());
  ChildProcess server(std::move(start));
  int port = 0;
  const bool listens = server.WaitOutput(kStartSeconds, [&](const std::string& output) {
    return (port = PortAfter(output, "listening on")) > 0;
  });
  if (!listens) {
    return absl::UnavailableError(
        absl::StrCat(program.string(), " did not start: ", LastLine(server.output())));
  }
  absl::Status status = Measure(flags, absl::StrCat("127.0.0.1:", port), report);
  server.Signal(SIGTERM);
  const std::optional<int> code = server.WaitEnd(kEndSeconds);
  if (status.ok() && code.value_or(-1) != 0) {
    return absl::InternalError(absl::StrCat("fox-server --acp=", mode, " ended with ",
                                            code.value_or(-1), ": ", LastLine(server.output())));
  }
  return status;
}

// Measures a server for each bound and prints its ratios to the first one.
absl::Status Compare(const ServeFlags& flags, BenchReport* report) {
  for (const AcpMode mode : flags.modes) {
    const size_t first = report->rows().size();
    if (absl::Status s = MeasureOwn(flags, NameOf(mode), report); !s.ok()) return s;
    for (size_t i = 0; first > 0 && i < flags.rate_list.size(); ++i) {
      const auto ratio = [&](const char* key) {
        return report->rows()[first + i][key].get<double>() / report->rows()[i][key].get<double>();
      };
      report->Note(absl::StrFormat(
          "%s over %s at %.2f a second: %.2fx the tokens/s, %.2fx running at once, %.2fx without "
          "losing pages",
          NameOf(mode), NameOf(flags.modes.front()), flags.rate_list[i],
          ratio("output_tokens_per_second"), ratio("most_running"), ratio("most_kept")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchServe(const std::vector<std::string>& arguments) {
  ServeFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  BenchReport report;
  report.facts() = {{"prompt_tokens", flags.prompt},
                    {"output_tokens", flags.output},
                    {"requests", flags.requests},
                    {"seed", flags.seed}};
  if (flags.compare.empty()) {
    report.facts()["target"] = flags.target;
  } else {
    report.facts()["model"] = flags.model;
    report.facts()["server_flags"] = flags.server_flags;
  }
  report.Section("Serving: Poisson arrivals over gRPC", kColumns);
  absl::Status status =
      flags.compare.empty() ? Measure(flags, flags.target, &report) : Compare(flags, &report);
  // A failure keeps the rows that were measured before.
  status.Update(report.Write(flags.json));
  return status;
}

}  // namespace fox
