// ServerProcess: see server_process.h.
#include "tests/e2e/server_process.h"

#include <cstdint>
#include <fstream>

namespace fox {
namespace {

ChildStart Command(const ServerStart& start) {
  ChildStart out{{start.program}, start.variables, start.errors};
  const auto add = [&](const char* flag, int port) {
    if (port >= 0) out.arguments.push_back(flag + std::to_string(port));
  };
  add("--grpc-port=", start.ports.grpc);
  add("--http-port=", start.ports.http);
  add("--metrics-port=", start.ports.metrics);
  out.arguments.insert(out.arguments.end(), start.flags.begin(), start.flags.end());
  return out;
}

}  // namespace

ServerProcess::ServerProcess(const ServerStart& start)
    : asked_(start.ports), process_(Command(start)) {}

double ServerProcess::age() const {
  return std::chrono::duration<double>(ChildProcess::Clock::now() - start_).count();
}

bool ServerProcess::Handles(int signal) const {
  std::ifstream status("/proc/" + std::to_string(pid()) + "/status");
  uint64_t handled = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigBlk:", 0) == 0 || line.rfind("SigCgt:", 0) == 0) {
      handled |= std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return (handled >> (signal - 1) & 1) != 0;
}

bool ServerProcess::WaitReady(double seconds) {
  const bool ready = process_.WaitOutput(seconds - age(), [this](const std::string& output) {
    ports_.grpc = PortAfter(output, "listening on");
    ports_.http = PortAfter(output, "listening for HTTP on");
    ports_.metrics = PortAfter(output, "listening for Prometheus on");
    return ports_.grpc > 0 && (ports_.http > 0 || asked_.http < 0) &&
           (ports_.metrics > 0 || asked_.metrics < 0);
  });
  if (ready && ready_seconds_ == 0) ready_seconds_ = age();
  return ready;
}

bool ServerProcess::WaitLog(const std::string& text, double seconds) {
  return process_.WaitOutput(
      seconds, [&](const std::string& output) { return output.find(text) != std::string::npos; });
}

}  // namespace fox
