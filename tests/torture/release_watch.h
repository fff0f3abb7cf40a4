// Shared by the parts that serve in their own process: options of a server that is often short of
// pages, connections to it, and ReleaseWatch, which measures how soon the pages of ended requests
// are free.
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

  // The largest count of all requests so far. Any thread may call it.
  int64_t slowest() const { return slowest_; }

 private:
  // Used by the engine's thread alone.
  int64_t plans_ = 0;
  std::map<int32_t, RequestId> owners_;  // by slot
  std::map<RequestId, int32_t> slots_;   // slots that hold pages
  std::map<RequestId, int64_t> ended_;   // ended requests that hold pages: plans_ at their end
  std::atomic<int64_t> slowest_{0};
};

// A pool of half the pages that all sequences could take. `watch` may be null.
TestCoreOptions TortureOptions(ReleaseWatch* watch);

using Stubs = std::vector<std::unique_ptr<grpc::GenericStub>>;
// One stub for each of `connections` new connections.
Stubs ConnectStubs(int port, int connections);

}  // namespace fox
