// ReleaseWatch counts plans; options and connections of parts that serve in their own process.
#include "tests/torture/release_watch.h"

#include <algorithm>

#include "tests/fixtures/raw_call.h"

namespace fox {

void ReleaseWatch::BeforeSubmit(const StepPlan& plan) {
  ++plans_;
  for (const int32_t slot : plan.release_slots) {
    const auto owner = owners_.find(slot);
    if (owner == owners_.end()) continue;
    if (const auto ended = ended_.find(owner->second); ended != ended_.end()) {
      slowest_ = std::max(slowest_.load(), plans_ - ended->second);
      ended_.erase(ended);
    }
    slots_.erase(owner->second);
    owners_.erase(owner);
  }
  for (const PlannedSequence& sequence : plan.sequences) {
    owners_[sequence.slot] = sequence.id;
    slots_[sequence.id] = sequence.slot;
  }
  // Slots that are still not released count, too.
  for (const auto& [id, when] : ended_) slowest_ = std::max(slowest_.load(), plans_ - when);
}

void ReleaseWatch::OnFinish(const Request& request, const Finish& finish) {
  static_cast<void>(finish);
  if (slots_.count(request.id) > 0) ended_[request.id] = plans_;
}

TestCoreOptions TortureOptions(ReleaseWatch* watch) {
  TestCoreOptions options;
  options.max_num_seqs = 64;
  options.max_model_len = 512;
  options.num_pages = 512;  // half of what all sequences at full length would take
  options.max_num_batched_tokens = 1024;
  options.max_num_queued_reqs = 256;
  options.max_queue_seconds = 0;
  if (watch != nullptr) options.observers = {watch};
  return options;
}

Stubs ConnectStubs(int port, int connections) {
  Stubs stubs;
  for (int i = 0; i < connections; ++i) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(ConnectTo(port)));
  }
  return stubs;
}

}  // namespace fox
