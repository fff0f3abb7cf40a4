// FaultyServer: a fox-server on the demo model with a FaultPage and a preloaded library;
// HealthWatch: a client that watches its health.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/faults/fault_page.h"
#include "tests/fixtures/raw_call.h"
#include "tests/fixtures/server_process.h"

namespace fox {

// A page, all of it zero, that servers started from now on can be given.
class SharedFaultPage {
 public:
  SharedFaultPage();
  ~SharedFaultPage();
  FaultPage* operator->() const { return page_; }
  int descriptor() const { return descriptor_; }

  // The `fail_at`-th call counted from now on fails with `error`, and so do `calls - 1` more.
  void Arm(FaultKind kind, int64_t fail_at, int error = 0, int64_t calls = 1);
  // Counts no more.
  void Disarm() const { page_->kind = FaultKind::kNone; }

 private:
  int descriptor_;
  FaultPage* page_;
};

// `program` of the build. `preload`: a function of the library, or null.
ServerStart FaultyServer(const SharedFaultPage& page, const std::vector<std::string>& flags,
                         const void* preload = nullptr, const std::string& program = "fox-server");

// On the clock of FaultPage::Now().
int64_t EndedNs(const ServerProcess& server);

// A Watch of grpc.health.v1.
class HealthWatch {
 public:
  explicit HealthWatch(const ServerProcess& server);
  ~HealthWatch();

  // Waits for the first answer.
  bool WaitServing();
  // When NOT_SERVING came, or the end of the connection; FaultPage::Now(). Waits for it.
  int64_t WaitNotServing();

 private:
  void Notice(bool serving, bool ended);

  grpc::GenericStub stub_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false, ended_ = false;
  int64_t not_serving_ns_ = 0;
  std::shared_ptr<grpc::ClientContext> call_;
};

}  // namespace fox
