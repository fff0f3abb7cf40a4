// fox-bench serve: load on a server by clients that do not wait for each other (arrivals.h), and
// what they see: time to the first token, time between tokens, throughput and errors, with
// percentiles. With --compare the servers are its own: one for each bound, one after the other,
// under the same arrivals, in one table with their ratios.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/engine_factory.h"
#include "engine/eval/eval_command.h"
#include "fox/v1/info.grpc.pb.h"
#include "tests/bench/arrivals.h"
#include "tests/bench/commands.h"
#include "tests/bench/measurement.h"
#include "tests/bench/scrape.h"
#include "tests/e2e/child_process.h"

namespace fox {
namespace {

constexpr double kStartSeconds = 120, kEndSeconds = 30;

struct ServeFlags {
  std::string target = "127.0.0.1:50051", rates = "1,2,4", json;
  std::string prompt = "256-4096", output = "32-512";
  int64_t requests = 64, seed = 1;
  double timeout = 120;
  std::string compare, model = FOX_SOURCE_DIR "/models/demo", device = "auto";
  // What they say.
  TokenRange prompt_tokens, output_tokens;
  std::vector<double> rate_list;
  std::vector<std::string> modes;         // of --compare
  std::vector<std::string> server_flags;  // behind "--"
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
  values->modes = absl::StrSplit(values->compare, ',');
  for (const std::string& mode : values->modes) {
    if (!ParseAcpMode(mode)) {
      return absl::InvalidArgumentError(absl::StrCat("--compare: \"", values->compare,
                                                     "\" is not a list of off, paper, certified"));
    }
  }
  return absl::OkStatus();
}

absl::Status Parse(const std::vector<std::string>& arguments, ServeFlags* values) {
  FlagSet flags;
  flags.Group("Load");
  flags.String("target", "HOST:PORT", "a server on this machine", &values->target);
  flags.String("rates", "LIST", "requests a second, one run each", &values->rates);
  flags.Int("requests", "N", "requests of one run", 1, 10000, &values->requests);
  flags.String("prompt-tokens", "N|A-B", "prompt lengths", &values->prompt);
  flags.String("output-tokens", "N|A-B", "answer lengths", &values->output);
  flags.Double("timeout", "SECONDS", "deadline of a request", 0.1, 3600, &values->timeout);
  flags.Int("seed", "N", "of arrivals, lengths and tokens", 0, 1 << 30, &values->seed);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  flags.Group("Instead of --target, servers of its own; what stands behind -- are flags of theirs");
  flags.String("compare", "LIST", "bounds, such as off,certified: a server each, in this order",
               &values->compare);
  flags.String("model", "DIR", "that they serve", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  const auto rest = std::find(arguments.begin(), arguments.end(), "--");
  if (rest != arguments.end()) values->server_flags.assign(rest + 1, arguments.end());
  absl::Status status = ParseOrHelp(flags, {arguments.begin(), rest}, "fox-bench serve");
  if (!status.ok()) return status;
  if (!values->server_flags.empty() && values->compare.empty()) {
    return absl::InvalidArgumentError("what stands behind -- are flags of servers of --compare");
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

// What the clients of one run saw together.
struct Totals {
  std::vector<double> first, gaps, whole, late;
  std::map<int, int> errors;
  // Lost: neither answered nor refused.
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

// Where to ask for the metrics of a server of ours; 0: it is not ours.
using MetricsPort = int;

// Number and seconds of the engine's steps so far, with prompts and without.
std::map<std::string, double> Steps(MetricsPort port) {
  std::map<std::string, double> steps;
  if (port == 0) return steps;
  const std::map<std::string, double> metrics = Scrape(port);
  for (const std::string phase : {"prefill", "decode"}) {
    for (const auto& [name, metric] : {std::pair{"steps", "count"}, {"seconds", "sum"}}) {
      const auto found = metrics.find(
          absl::StrFormat("fox_step_duration_seconds_%s{phase=\"%s\"}", metric, phase));
      if (found != metrics.end()) steps[absl::StrCat(phase, "_", name)] = found->second;
    }
  }
  return steps;
}

// One line of the table; returns the row.
nlohmann::ordered_json Report(BenchReport* report, const std::string& acp, double rate,
                              const ServedArrivals& served, int64_t prompt_tokens,
                              const std::map<std::string, double>& steps) {
  const Totals sum = Add(served.outcomes);
  auto errors = nlohmann::ordered_json::object();
  for (const auto& [code, count] : sum.errors) errors[absl::StrCat("grpc_", code)] = count;
  const auto ttft = Percentiles(sum.first), itl = Percentiles(sum.gaps);
  const auto completed = static_cast<double>(sum.completed);
  const double pace = static_cast<double>(sum.tokens) / served.seconds;
  nlohmann::ordered_json row = {
      {"bench", "serve"},
      {"acp", acp},
      {"rate", rate},
      {"completed", sum.completed},
      {"errors", errors},
      {"refused", sum.refused},
      {"lost", sum.lost},
      {"missing_tokens", sum.missing},
      {"repeated_tokens", sum.repeated},
      {"preempted", sum.preempted},
      {"preemptions", served.preemptions},
      {"most_running", served.most_running},
      {"most_kept", served.MostKept()},
      {"most_pages", served.most_pages},
      {"num_pages", served.num_pages},
      {"most_kept_bytes", served.most_kept_bytes},
      {"seconds", served.seconds},
      {"engine", steps},
      {"requests_per_second", completed / served.seconds},
      {"prompt_tokens_per_second", static_cast<double>(prompt_tokens) / served.seconds},
      {"output_tokens_per_second", pace},
      {"time_to_first_token", ttft},
      {"inter_token_latency", itl},
      {"end_to_end", Percentiles(sum.whole)},
      {"sent_late", Percentiles(sum.late)}};
  report->Row(
      absl::StrFormat(
          "%9s %7.2f %6d %7d %4d %9d %7d %4d %8.1f %9.1f %9.1f %9.1f %9.1f %8.2f %8.2f %8.2f", acp,
          rate, sum.completed, sum.refused, sum.lost, sum.preempted, served.most_running,
          served.MostKept(), served.seconds, pace, P(ttft, "p50"), P(ttft, "p90"), P(ttft, "p99"),
          P(itl, "p50"), P(itl, "p90"), P(itl, "p99")),
      row);
  if (!steps.empty()) {
    report->Note(
        absl::StrFormat("%9s engine: %.1f s in %.0f steps with prompts, %.1f s in %.0f without",
                        acp, steps.at("prefill_seconds"), steps.at("prefill_steps"),
                        steps.at("decode_seconds"), steps.at("decode_steps")));
  }
  if (sum.missing + sum.repeated > 0) {
    report->Note(
        absl::StrFormat("%d tokens are missing, %d came twice", sum.missing, sum.repeated));
  }
  return row;
}

// All rates on one server; what was measured is written as it goes.
absl::StatusOr<std::vector<nlohmann::ordered_json>> Measure(const ServeFlags& flags,
                                                            const std::string& target,
                                                            MetricsPort metrics,
                                                            BenchReport* report) {
  const auto stub = v1::Info::NewStub(ConnectTo(target));
  grpc::ClientContext model_context, server_context;
  v1::ModelInfo model;
  v1::ServerInfo server;
  for (auto* context : {&model_context, &server_context}) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  }
  grpc::Status asked = stub->GetModelInfo(&model_context, v1::GetModelInfoRequest(), &model);
  if (asked.ok()) {
    asked = stub->GetServerInfo(&server_context, v1::GetServerInfoRequest(), &server);
  }
  if (!asked.ok()) return absl::UnavailableError(absl::StrCat(target, ": ", asked.error_message()));
  report->facts()["backend"] = server.device();
  const std::string acp = server.acp_mode() == v1::OFF     ? "off"
                          : server.acp_mode() == v1::PAPER ? "paper"
                                                           : "certified";
  std::vector<nlohmann::ordered_json> rows;
  for (const double rate : flags.rate_list) {
    const std::vector<PlannedRequest> plan =
        PlanArrivals(flags.requests, rate, flags.prompt_tokens, flags.output_tokens,
                     static_cast<uint64_t>(flags.seed));
    int64_t prompt_tokens = 0;
    for (const PlannedRequest& request : plan) prompt_tokens += request.prompt_tokens;
    const std::map<std::string, double> before = Steps(metrics);
    const ServedArrivals served = SendArrivals(target, plan, model.vocab_size(), flags.timeout);
    std::map<std::string, double> steps = Steps(metrics);
    for (const auto& [name, value] : before) steps[name] -= value;
    rows.push_back(Report(report, acp, rate, served, prompt_tokens, steps));
    if (absl::Status s = report->Write(flags.json); !s.ok()) return s;
  }
  return rows;
}

// The last line that a server which did not start has said.
std::string LastLine(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  return lines.empty() ? "it said nothing" : lines.back();
}

// A fox-server that lies beside this program, for as long as it takes.
absl::StatusOr<std::vector<nlohmann::ordered_json>> MeasureOwn(const ServeFlags& flags,
                                                               const std::string& mode,
                                                               BenchReport* report) {
  std::error_code error;
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "fox-server";
  ChildStart start;
  start.arguments = {program.string(),           "--host=127.0.0.1",       "--grpc-port=0",
                     "--metrics-port=0",         "--model=" + flags.model, "--acp=" + mode,
                     "--device=" + flags.device, "--log-level=warning"};
  start.arguments.insert(start.arguments.end(), flags.server_flags.begin(),
                         flags.server_flags.end());
  ChildProcess server(std::move(start));
  int port = 0, metrics = 0;
  const bool listens = server.WaitOutput(kStartSeconds, [&](const std::string& output) {
    port = PortAfter(output, "listening on");
    metrics = PortAfter(output, "listening for Prometheus on");
    return port > 0 && metrics > 0;
  });
  if (!listens) {
    return absl::UnavailableError(
        absl::StrCat(program.string(), " did not start: ", LastLine(server.output())));
  }
  auto rows = Measure(flags, absl::StrCat("127.0.0.1:", port), metrics, report);
  server.Signal(SIGTERM);
  const std::optional<int> code = server.WaitEnd(kEndSeconds);
  if (rows.ok() && code.value_or(-1) != 0) {
    return absl::InternalError(absl::StrCat("fox-server --acp=", mode, " ended with ",
                                            code.value_or(-1), ": ", LastLine(server.output())));
  }
  return rows;
}

// What each bound gains over the first one.
void ReportRatios(BenchReport* report, const std::vector<nlohmann::ordered_json>& base,
                  const std::vector<nlohmann::ordered_json>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto ratio = [&](const char* key) -> nlohmann::ordered_json {
      const double under = base[i][key].get<double>();
      if (under == 0) return nullptr;
      return row[key].get<double>() / under;
    };
    const auto shown = [](const nlohmann::ordered_json& value) {
      return value.is_null() ? NAN : value.get<double>();
    };
    const auto tokens = ratio("output_tokens_per_second"), running = ratio("most_running"),
               kept = ratio("most_kept");
    report->Row(
        absl::StrFormat("%s over %s at %.2f a second: %.2fx the tokens/s, %.2fx running at once, "
                        "%.2fx without losing pages",
                        row["acp"].get<std::string>(), base[i]["acp"].get<std::string>(),
                        row["rate"].get<double>(), shown(tokens), shown(running), shown(kept)),
        {{"bench", "serve_compare"},
         {"acp", row["acp"]},
         {"over", base[i]["acp"]},
         {"rate", row["rate"]},
         {"output_tokens_per_second", tokens},
         {"most_running", running},
         {"most_kept", kept}});
  }
}

absl::Status Compare(const ServeFlags& flags, BenchReport* report) {
  std::vector<nlohmann::ordered_json> base;
  for (const std::string& mode : flags.modes) {
    const auto rows = MeasureOwn(flags, mode, report);
    if (!rows.ok()) return rows.status();
    if (base.empty()) {
      base = *rows;
    } else {
      ReportRatios(report, base, *rows);
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
  absl::Status status = flags.compare.empty() ? Measure(flags, flags.target, 0, &report).status()
                                              : Compare(flags, &report);
  // What was measured before a failure is kept, too.
  status.Update(report.Write(flags.json));
  return status;
}

}  // namespace fox
