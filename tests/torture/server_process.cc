// ServerProcess: see server_process.h.
#include "tests/torture/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The port of the line "MARK HOST:PORT\n"; 0: there is none yet.
int PortAfter(const std::string& output, const std::string& mark) {
  const size_t begin = output.find(mark + " ");
  if (begin == std::string::npos) return 0;
  const size_t end = output.find('\n', begin);
  if (end == std::string::npos) return 0;
  return std::atoi(output.c_str() + output.rfind(':', end) + 1);
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& flags,
                             const ServerPorts& ports)
    : start_(Clock::now()) {
  std::vector<std::string> arguments = {
      program, "--host=127.0.0.1", absl::StrCat("--grpc-port=", ports.grpc),
      absl::StrCat("--http-port=", ports.http), absl::StrCat("--metrics-port=", ports.metrics)};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  const char* log = std::getenv("FOX_TORTURE_LOG");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log == nullptr ? "/dev/null" : log,
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  out_ = ends[0];
}

ServerProcess::~ServerProcess() {
  if (!code_.has_value()) {
    Signal(SIGKILL);
    Wait(60);
  }
  if (out_ >= 0) close(out_);
}

double ServerProcess::age() const { return SecondsSince(start_); }

bool ServerProcess::Handles(int signal) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  uint64_t handled = 0;
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "SigBlk:") || absl::StartsWith(line, "SigCgt:")) {
      handled |= std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return (handled >> (signal - 1) & 1) != 0;
}

void ServerProcess::ReadPorts() {
  ports_.grpc = PortAfter(output_, "listening on");
  ports_.http = PortAfter(output_, "listening for HTTP on");
  ports_.metrics = PortAfter(output_, "listening for Prometheus on");
  if (ports_.grpc > 0 && ports_.http > 0 && ports_.metrics > 0) ready_seconds_ = age();
}

bool ServerProcess::WaitListening(double seconds) {
  std::array<char, 4096> buffer = {};
  while (ready_seconds_ == 0) {
    const double left = seconds - age();
    pollfd ready{out_, POLLIN, 0};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(1000 * left) + 1) != 1) return false;
    const ssize_t n = read(out_, buffer.data(), buffer.size());
    if (n <= 0) return false;
    output_.append(buffer.data(), static_cast<size_t>(n));
    ReadPorts();
  }
  return true;
}

void ServerProcess::Signal(int signal) const {
  if (pid_ > 0 && !code_.has_value()) kill(pid_, signal);
}

std::optional<int> ServerProcess::Wait(double seconds) {
  if (pid_ <= 0) return 127;
  const Clock::time_point begin = Clock::now();
  while (!code_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (SecondsSince(begin) > seconds) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return code_;
}

}  // namespace fox
