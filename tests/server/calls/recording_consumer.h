// RecordingConsumer: keeps what a Generation delivers, and answers as a reader that takes
// everything at once.
#pragma once

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "engine/mutex.h"
#include "server/calls/sequence_events.h"

namespace fox {

class RecordingConsumer final : public GenerationConsumer {
 public:
  explicit RecordingConsumer(EngineThread& engine) : engine_(engine) {}

  absl::Status Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override {
    if (tokens > 0) engine_.Acknowledge(sequence, tokens);
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    return absl::OkStatus();
  }
  void Done(const absl::Status& status) override { done_.set_value(status); }

  // Waits for the end, which must come once.
  absl::Status WaitDone() { return done_.get_future().get(); }
  std::vector<v1::GenerateDelta> events() {
    const MutexLock lock(mutex_);
    return events_;
  }
  // The deltas' text of one sequence.
  std::string Text(uint32_t index) {
    std::string text;
    for (const v1::GenerateDelta& event : events()) {
      if (event.has_delta() && event.delta().index() == index) text += event.delta().text();
    }
    return text;
  }

 private:
  EngineThread& engine_;
  Mutex mutex_;
  std::vector<v1::GenerateDelta> events_ ABSL_GUARDED_BY(mutex_);
  std::promise<absl::Status> done_;  // throws when it is set twice
};

}  // namespace fox
