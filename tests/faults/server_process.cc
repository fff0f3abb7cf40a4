// ServerProcess: see server_process.h.
#include "tests/faults/server_process.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "gtest/gtest.h"

namespace fox {
namespace {

ChildStart Command(const ServerStart& start, const SharedFaultPage& page) {
  const std::string model =
      start.model.empty() ? std::string(FOX_SOURCE_DIR) + "/models/demo" : start.model;
  ChildStart out;
  out.arguments = {std::string(FOX_BINARY_DIR) + "/bin/" + start.program, "--model", model,
                   "--grpc-port=0"};
  if (start.http) out.arguments.push_back("--http-port=0");
  out.arguments.insert(out.arguments.end(), start.flags.begin(), start.flags.end());
  out.variables = start.variables;
  out.variables.push_back(std::string(kFaultPageVariable) + "=" +
                          std::to_string(page.descriptor()));
  if (!start.preload.empty()) out.variables.push_back("LD_PRELOAD=" + start.preload);
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
    : http_(start.http), process_(Command(start, page)) {}

bool ServerProcess::WaitReady(double seconds) {
  return process_.WaitOutput(seconds, [this](const std::string& log) {
    grpc_port_ = PortAfter(log, "listening on");
    http_port_ = PortAfter(log, "listening for HTTP on");
    return grpc_port_ > 0 && (http_port_ > 0 || !http_);
  });
}

int64_t ServerProcess::ended_ns() const {
  return std::chrono::nanoseconds(process_.ended().time_since_epoch()).count();
}

std::string LibraryOf(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0) return "";
  return std::filesystem::absolute(info.dli_fname).string();
}

}  // namespace fox
