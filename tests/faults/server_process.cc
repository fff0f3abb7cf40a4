// ServerProcess: see server_process.h.
#include "tests/faults/server_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <regex>

#include "gtest/gtest.h"

extern char** environ;

namespace fox {
namespace {

// The port that a line says after `what`, on standard output or, where that line was lost, in the
// log; 0: neither is there.
int PortAfter(const std::string& log, const std::string& what) {
  static constexpr char kAddress[] = R"(\S+(:| port=)(\d+)( printed=\w+)?\n)";
  std::smatch found;
  return std::regex_search(log, found, std::regex(what + kAddress)) ? std::stoi(found[2]) : 0;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> out;
  for (std::string& text : *strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

SharedFaultPage::SharedFaultPage() : descriptor_(memfd_create("faults", 0)), page_(nullptr) {
  EXPECT_EQ(ftruncate(descriptor_, sizeof(FaultPage)), 0);
  void* memory =
      mmap(nullptr, sizeof(FaultPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) std::abort();
  page_ = static_cast<FaultPage*>(memory);
}

SharedFaultPage::~SharedFaultPage() {
  munmap(page_, sizeof(FaultPage));
  close(descriptor_);
}

void SharedFaultPage::Clear() { std::memset(static_cast<void*>(page_), 0, sizeof(FaultPage)); }

void SharedFaultPage::Arm(FaultKind kind, int64_t fail_at, int error, int64_t calls) {
  page_->kind = FaultKind::kNone;
  page_->calls = 0;
  page_->failed = 0;
  page_->failed_ns = 0;
  page_->fail_at = fail_at;
  page_->fail_calls = calls;
  page_->error = error;
  page_->kind = kind;
}

double SharedFaultPage::SecondsSinceFailure() const {
  return 1e-9 * static_cast<double>(FaultPage::Now() - page_->failed_ns);
}

ServerProcess::ServerProcess(const ServerStart& start, const SharedFaultPage& page)
    : http_(start.http) {
  const std::string model =
      start.model.empty() ? std::string(FOX_SOURCE_DIR) + "/models/demo" : start.model;
  std::vector<std::string> arguments = {std::string(FOX_BINARY_DIR) + "/bin/" + start.program,
                                        "--model", model, "--grpc-port=0"};
  if (start.http) arguments.push_back("--http-port=0");
  arguments.insert(arguments.end(), start.flags.begin(), start.flags.end());
  std::vector<std::string> variables = start.variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = name == "LD_PRELOAD=";
    for (const std::string& other : start.variables) replaced |= other.rfind(name, 0) == 0;
    if (!replaced) variables.push_back(text);
  }
  variables.push_back(std::string(kFaultPageVariable) + "=" + std::to_string(page.descriptor()));
  if (!start.preload.empty()) variables.push_back("LD_PRELOAD=" + start.preload);

  std::vector<char*> argv = Pointers(&arguments), environment = Pointers(&variables);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the thread that starts it, or the test
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve(argv[0], argv.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
  reader_ = std::thread([this] { ReadLog(); });
  waiter_ = std::thread([this] { AwaitEnd(); });
}

ServerProcess::~ServerProcess() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!code_.has_value()) kill(pid_, SIGKILL);
  }
  waiter_.join();
  reader_.join();
  close(output_);
}

void ServerProcess::ReadLog() {
  std::array<char, 4096> buffer = {};
  ssize_t count = 0;
  while ((count = read(output_, buffer.data(), buffer.size())) > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    log_.append(buffer.data(), static_cast<size_t>(count));
    changed_.notify_all();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  log_is_whole_ = true;
  changed_.notify_all();
}

void ServerProcess::AwaitEnd() {
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  const int64_t now = FaultPage::Now();
  const std::lock_guard<std::mutex> lock(mutex_);  // kill() must not meet a pid of somebody else
  waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  ended_ns_ = now;
  changed_.notify_all();
}

bool ServerProcess::WaitReady(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, end, [this] {
    grpc_port_ = PortAfter(log_, "listening on ");
    http_port_ = PortAfter(log_, "listening for HTTP on ");
    return (code_.has_value() && log_is_whole_) || (grpc_port_ > 0 && (http_port_ > 0 || !http_));
  }) && !code_.has_value();
}

std::optional<int> ServerProcess::WaitEnd(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return code_.has_value() && log_is_whole_; });
  return code_;
}

void ServerProcess::Signal(int signal) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!code_.has_value()) kill(pid_, signal);
}

std::string ServerProcess::log() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

int64_t ServerProcess::ended_ns() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_ns_;
}

std::string LibraryOf(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0) return "";
  return std::filesystem::absolute(info.dli_fname).string();
}

}  // namespace fox
