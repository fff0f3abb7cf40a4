// FaultyServer, HealthWatch: see faulty_server.h.
#include "tests/faults/faulty_server.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"

namespace fox {

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

ServerStart FaultyServer(const SharedFaultPage& page, const std::vector<std::string>& flags,
                         const void* preload, const std::string& program) {
  ServerStart start;
  start.program = std::string(FOX_BINARY_DIR) + "/bin/" + program;
  start.flags = {"--model", std::string(FOX_SOURCE_DIR) + "/models/demo"};
  start.flags.insert(start.flags.end(), flags.begin(), flags.end());
  start.variables = {std::string(kFaultPageVariable) + "=" + std::to_string(page.descriptor())};
  Dl_info info{};
  if (preload != nullptr && dladdr(preload, &info) != 0) {
    start.variables.push_back("LD_PRELOAD=" + std::filesystem::absolute(info.dli_fname).string());
  }
  return start;
}

int64_t EndedNs(const ServerProcess& server) {
  return std::chrono::nanoseconds(server.ended().time_since_epoch()).count();
}

HealthWatch::HealthWatch(const ServerProcess& server)
    : stub_(ConnectTo(server.ports().grpc)),
      call_(RawCall::Start(
          stub_, {"/grpc.health.v1.Health/Watch", "", 600000},  // of all services
          [this](const std::string& message) {
            Notice(message == "\x08\x01", false);
            return true;
          },
          [this](const grpc::Status&, const RawCall::Metadata&) { Notice(false, true); })) {}

HealthWatch::~HealthWatch() {
  call_->TryCancel();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

void HealthWatch::Notice(bool serving, bool ended) {
  const int64_t now = FaultPage::Now();
  const std::lock_guard<std::mutex> lock(mutex_);
  serving_ |= serving;
  ended_ |= ended;
  if (!serving && not_serving_ns_ == 0) not_serving_ns_ = now;
  changed_.notify_all();
}

bool HealthWatch::WaitServing() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(10),
                    [this] { return serving_ || not_serving_ns_ != 0; });
  return serving_ && not_serving_ns_ == 0;
}

int64_t HealthWatch::WaitNotServing() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(60), [this] { return not_serving_ns_ != 0; });
  return not_serving_ns_;
}

}  // namespace fox
