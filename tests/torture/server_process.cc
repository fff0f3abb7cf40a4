// ServerProcess: see server_process.h.
#include "tests/torture/server_process.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/torture/part.h"

namespace fox {
namespace {

ChildStart Command(const std::string& program, const std::vector<std::string>& flags,
                   const ServerPorts& ports) {
  ChildStart out;
  out.arguments = {program, "--host=127.0.0.1", absl::StrCat("--grpc-port=", ports.grpc),
                   absl::StrCat("--http-port=", ports.http),
                   absl::StrCat("--metrics-port=", ports.metrics)};
  out.arguments.insert(out.arguments.end(), flags.begin(), flags.end());
  const char* log = std::getenv("FOX_TORTURE_LOG");
  out.errors = log == nullptr ? "/dev/null" : log;
  return out;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& flags,
                             const ServerPorts& ports)
    : start_(std::chrono::steady_clock::now()), process_(Command(program, flags, ports)) {}

double ServerProcess::age() const { return SecondsSince(start_); }

bool ServerProcess::Handles(int signal) const {
  std::ifstream status(absl::StrCat("/proc/", pid(), "/status"));
  uint64_t handled = 0;
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "SigBlk:") || absl::StartsWith(line, "SigCgt:")) {
      handled |= std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return (handled >> (signal - 1) & 1) != 0;
}

bool ServerProcess::WaitListening(double seconds) {
  const bool listening = process_.WaitOutput(seconds - age(), [this](const std::string& output) {
    ports_.grpc = PortAfter(output, "listening on");
    ports_.http = PortAfter(output, "listening for HTTP on");
    ports_.metrics = PortAfter(output, "listening for Prometheus on");
    return ports_.grpc > 0 && ports_.http > 0 && ports_.metrics > 0;
  });
  if (listening && ready_seconds_ == 0) ready_seconds_ = age();
  return listening;
}

}  // namespace fox
