// fox-bench: measures serving's work on this machine against the machine's own peaks, measured in
// the same run. Every row: median and spread, the floor from counted bytes and multiplications,
// and measured / floor. One file for each benchmark.
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/bench_session.h"

namespace {

using Benchmark = std::function<absl::Status(fox::BenchSession&)>;

constexpr int kConfigError = 78;  // EX_CONFIG
constexpr char kUsage[] =
    "usage: fox-bench COMMAND --model DIR [flags]     (fox-bench COMMAND --help lists them)\n"
    "  prefill  prompts by length and bound, and where the time goes\n"
    "  decode   steps by batch size, context and bound\n"
    "  linear   the model's matrix products alone\n"
    "  memory   KV bytes by context and bound\n"
    "  all      these four\n";

absl::Status RunAll(const std::vector<Benchmark>& benchmarks, const std::string& command,
                    const std::vector<std::string>& arguments) {
  fox::BenchFlags flags;
  if (absl::Status s = flags.Parse(arguments, command); !s.ok()) return s;
  auto session = fox::OpenSession(flags);
  if (!session.ok()) return session.status();
  for (const Benchmark& benchmark : benchmarks) {
    if (absl::Status s = benchmark(*session); !s.ok()) return s;
  }
  if (flags.json.empty()) return absl::OkStatus();
  std::ofstream out(flags.json);
  out << session->report.Json().dump(1) << '\n';
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + flags.json);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::pair<std::string, Benchmark>> benchmarks = {{"prefill", fox::BenchPrefill},
                                                                     {"decode", fox::BenchDecode},
                                                                     {"linear", fox::BenchLinear},
                                                                     {"memory", fox::BenchMemory}};
  const std::string name = argc > 1 ? argv[1] : "";
  std::vector<Benchmark> chosen;
  for (const auto& [key, benchmark] : benchmarks) {
    if (name == key || name == "all") chosen.push_back(benchmark);
  }
  if (chosen.empty()) {
    const bool asked = name == "--help" || name == "-h" || name == "help";
    std::fputs(kUsage, asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  const absl::Status status = RunAll(chosen, "fox-bench " + name, {argv + 2, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "fox-bench %s: %s\n", name.c_str(), std::string(status.message()).c_str());
  return kConfigError;
}
