// fox-bench: measures serving's work on this machine against the machine's own peaks, measured in
// the same run. Every row: median and spread, the floor from counted bytes and multiplications,
// and measured / floor. One file for each benchmark; without arguments, those of a model, on the
// demo model.
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/process/process_settings.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/commands.h"

namespace {

using Benchmark = std::function<absl::Status(fox::BenchSession&)>;

constexpr int kConfigError = 78;  // EX_CONFIG
constexpr char kUsage[] =
    "usage: fox-bench [COMMAND] [flags]     (fox-bench COMMAND --help lists them)\n"
    "  prefill  prompts by length and bound, and where the time goes\n"
    "  decode   steps by batch size, context and bound\n"
    "  linear   the model's matrix products alone\n"
    "  memory   KV bytes by context and bound\n"
    "  all      these four, and what runs without a command\n"
    "  attention   the CUDA backend's attention alone\n"
    "  swap        a sequence to host memory and back, against computing it again\n"
    "  serve       load on a server: what its clients see; --compare off,certified: on two\n"
    "  cache       what the prefix cache saves and costs\n"
    "  snapshots   what a further snapshot of a conversation costs\n"
    "  salts       whether times tell what another salt has cached\n"
    "  invariance  whether answers depend on what runs beside them\n"
    "  doors       the same sequences through the engine alone, fox.v1 and HTTP\n"
    "  make-model  writes a checkpoint with random weights\n";

absl::Status RunAll(const std::vector<Benchmark>& benchmarks, const std::string& command,
                    const std::vector<std::string>& arguments) {
  fox::BenchFlags flags;
  if (absl::Status s = flags.Parse(arguments, command); !s.ok()) return s;
  auto session = fox::OpenSession(flags);
  if (!session.ok()) return session.status();
  absl::Status status;
  for (const Benchmark& benchmark : benchmarks) {
    if (status = benchmark(*session); !status.ok()) break;
  }
  // What was measured before a failure is kept, too.
  status.Update(session->report.Write(flags.json));
  return status;
}

// What `name` runs; empty: there is no such command.
std::vector<Benchmark> Chosen(const std::string& name) {
  const std::vector<std::pair<std::string, Benchmark>> benchmarks = {{"prefill", fox::BenchPrefill},
                                                                     {"decode", fox::BenchDecode},
                                                                     {"linear", fox::BenchLinear},
                                                                     {"memory", fox::BenchMemory}};
  if (name == "attention") return {fox::BenchAttention};
  if (name == "swap") return {fox::BenchSwap};
  std::vector<Benchmark> chosen;
  for (const auto& [key, benchmark] : benchmarks) {
    if (name == key || name == "all") chosen.push_back(benchmark);
  }
  return chosen;
}

}  // namespace

int main(int argc, char** argv) {
  fox::ApplyProcessSettings();  // clients are measured beside the server
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string name = "all";
  const bool asked = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h");
  if (!arguments.empty() && (asked || arguments[0].rfind("--", 0) != 0)) {
    name = arguments[0];
    arguments.erase(arguments.begin());
  }
  absl::Status status;
  if (name == "serve") {
    status = fox::BenchServe(arguments);
  } else if (name == "cache") {
    status = fox::BenchCache(arguments);
  } else if (name == "snapshots") {
    status = fox::BenchSnapshots(arguments);
  } else if (name == "salts") {
    status = fox::BenchSalts(arguments);
  } else if (name == "invariance") {
    status = fox::BenchInvariance(arguments);
  } else if (name == "doors") {
    status = fox::BenchDoors(arguments);
  } else if (name == "make-model") {
    status = fox::MakeModel(arguments);
  } else if (const std::vector<Benchmark> chosen = Chosen(name); !chosen.empty()) {
    status = RunAll(chosen, "fox-bench " + name, arguments);
  } else {
    std::fputs(kUsage, asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "fox-bench %s: %s\n", name.c_str(), std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInternal ? 1 : kConfigError;
}
