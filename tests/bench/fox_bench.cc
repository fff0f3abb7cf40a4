// fox-bench: measures the work of serving on this machine against the machine's own peaks, measured
// in the same run. Every row has the median and the spread, the floor from counted bytes and
// multiplications, and measured / floor. Each benchmark has a file of its own. Without arguments it
// runs the benchmarks of a model on the demo model.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/process/process_settings.h"
#include "tests/bench/bench_session.h"

namespace {

constexpr int kConfigError = 78;  // EX_CONFIG

// A command that runs either in a session (`of_model`) or with flags of its own (`run`).
struct Command {
  std::string name, what;
  absl::Status (*of_model)(fox::BenchSession&);
  absl::Status (*run)(const std::vector<std::string>&) = nullptr;
};

const Command kCommands[] = {
    {"prefill", "prompts by length and bound: time and KV bytes", fox::BenchPrefill},
    {"decode", "steps by batch size, context and bound", fox::BenchDecode},
    {"all", "prefill and decode; the default", nullptr},
    {"attention", "the CUDA backend's attention alone", fox::BenchAttention},
    {"serve", "latency and throughput of a server under load", nullptr, fox::BenchServe},
    {"cache", "gain and cost of the prefix cache", nullptr, fox::BenchCache},
    {"invariance", "tests that answers do not depend on other requests", nullptr,
     fox::BenchInvariance},
    {"make-model", "writes a checkpoint with random weights", nullptr, fox::MakeModel}};

// Runs one benchmark of a model, or, for "all", the benchmarks listed before it.
absl::Status RunOnModel(const Command& command, const std::vector<std::string>& arguments) {
  fox::BenchFlags flags;
  if (absl::Status s = flags.Parse(arguments, "fox-bench " + command.name); !s.ok()) return s;
  auto session = fox::OpenSession(flags);
  if (!session.ok()) return session.status();
  absl::Status status;
  if (command.of_model != nullptr) {
    status = command.of_model(*session);
  } else {
    for (const Command* one = kCommands; one != &command && status.ok(); ++one) {
      status = one->of_model(*session);
    }
  }
  // A failure keeps the rows that were measured before.
  status.Update(session->report.Write(flags.json));
  return status;
}

int Usage(bool asked) {
  std::FILE* out = asked ? stdout : stderr;
  absl::FPrintF(out,
                "usage: fox-bench [COMMAND] [flags]     (fox-bench COMMAND --help lists them)\n");
  for (const Command& command : kCommands) {
    absl::FPrintF(out, "  %-11s %s\n", command.name, command.what);
  }
  return asked ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  fox::ApplyProcessSettings();  // clients are measured beside the server
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string name = "all";
  const bool asked = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h");
  if (asked) return Usage(true);
  if (!arguments.empty() && arguments[0].rfind("--", 0) != 0) {
    name = arguments[0];
    arguments.erase(arguments.begin());
  }
  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    const absl::Status status =
        command.run != nullptr ? command.run(arguments) : RunOnModel(command, arguments);
    if (status.ok()) return 0;
    absl::FPrintF(stderr, "fox-bench %s: %s\n", name, std::string(status.message()));
    return status.code() == absl::StatusCode::kInternal ? 1 : kConfigError;
  }
  return Usage(false);
}
