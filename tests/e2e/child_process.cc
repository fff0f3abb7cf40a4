// ChildProcess: see child_process.h.
#include "tests/e2e/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <regex>
#include <utility>

#include "engine/request/steady_clock.h"

extern char** environ;

namespace fox {
namespace {

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> out;
  for (std::string& text : *strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Those of this process that `variables` does not have behind them; none is preloaded unasked.
std::vector<std::string> Environment(std::vector<std::string> variables) {
  const std::vector<std::string> own = variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = name == "LD_PRELOAD=";
    for (const std::string& other : own) replaced |= other.rfind(name, 0) == 0;
    if (!replaced) variables.push_back(text);
  }
  return variables;
}

}  // namespace

ChildProcess::ChildProcess(ChildStart start) {
  std::vector<std::string> variables = Environment(std::move(start.variables));
  std::vector<char*> argv = Pointers(&start.arguments), environment = Pointers(&variables);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlimit no_core{};
    setrlimit(RLIMIT_CORE, &no_core);
    int errors = ends[1];
    if (!start.errors.empty()) {
      errors = open(start.errors.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    dup2(ends[1], STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execve(argv[0], argv.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  if (pid_ < 0) std::abort();
  pipe_ = ends[0];
  watcher_ = std::thread([this] { Watch(); });
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  watcher_.join();
  close(pipe_);
}

// The pipe ends with the process: no other has it.
void ChildProcess::Watch() {
  std::array<char, 4096> buffer = {};
  ssize_t count = 0;
  while ((count = read(pipe_, buffer.data(), buffer.size())) > 0) {
    const MutexLock lock(mutex_);
    output_.append(buffer.data(), static_cast<size_t>(count));
    changed_.NotifyAll();
  }
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  const MutexLock lock(mutex_);  // Signal must not meet a pid that was reused
  ended_ = Clock::now();
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  changed_.NotifyAll();
}

std::string ChildProcess::output() const {
  const MutexLock lock(mutex_);
  return output_;
}

bool ChildProcess::WaitOutput(double seconds,
                              const std::function<bool(const std::string& output)>& holds) {
  const Clock::time_point end = Clock::now() + SteadyDuration(seconds);
  const MutexLock lock(mutex_);
  while (!code_.has_value() && !holds(output_)) {
    if (!changed_.WaitUntil(mutex_, end)) return false;
  }
  return !code_.has_value();
}

std::optional<int> ChildProcess::WaitEnd(double seconds) {
  const Clock::time_point end = Clock::now() + SteadyDuration(seconds);
  const MutexLock lock(mutex_);
  while (!code_.has_value()) {
    if (!changed_.WaitUntil(mutex_, end)) break;
  }
  return code_;
}

ChildProcess::Clock::time_point ChildProcess::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void ChildProcess::Signal(int signal) const {
  const MutexLock lock(mutex_);
  if (!code_.has_value()) kill(pid_, signal);
}

int PortAfter(const std::string& output, const std::string& what) {
  static constexpr char kAddress[] = R"( \S+(:| port=)(\d+)( printed=\w+)?\n)";
  std::smatch found;
  return std::regex_search(output, found, std::regex(what + kAddress)) ? std::stoi(found[2]) : 0;
}

}  // namespace fox
