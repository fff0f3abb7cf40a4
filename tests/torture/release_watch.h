// What the parts in one process share: a server that is often short of pages, connections to it,
// and ReleaseWatch: how soon the pages of what has ended are free.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/request/step_observer.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/fixtures/test_core.h"

namespace fox {

// Counts the plans between a request's end and the release of its slot.
class ReleaseWatch final : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override;
  void OnFinish(const Request& request, const Finish& finish) override;

  // The most there were; any thread.
  int64_t slowest() const { return slowest_; }

 private:
  // The engine's thread alone.
  int64_t plans_ = 0;
  std::map<int32_t, RequestId> owners_;  // by slot
  std::map<RequestId, int32_t> slots_;   // of what holds pages
  std::map<RequestId, int64_t> ended_;   // when, of what ended and holds pages
  std::atomic<int64_t> slowest_{0};
};

// `watch` may be null.
TestCoreOptions TortureOptions(ReleaseWatch* watch);

using Stubs = std::vector<std::unique_ptr<grpc::GenericStub>>;
// So many new connections.
Stubs ConnectStubs(int port, int connections);

}  // namespace fox
