// A Generation's two ends in tests: FunctionSource makes its spec, RecordingConsumer keeps what it
// delivers and answers as a reader that takes everything at once.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "server/calls/generation.h"

namespace fox {

class FunctionSource final : public GenerationSource {
 public:
  using Function = std::function<absl::StatusOr<GenerationSpec>()>;
  explicit FunctionSource(Function function) : function_(std::move(function)) {}
  absl::StatusOr<GenerationSpec> Convert() override { return function_(); }

 private:
  const Function function_;
};

// `consumer` lives until its Done.
inline std::shared_ptr<Generation> StartGeneration(ServerCore& core, const CallInfo& info,
                                                   FunctionSource::Function convert,
                                                   GenerationConsumer* consumer) {
  return Generation::Start(core, info, std::make_unique<FunctionSource>(std::move(convert)),
                           std::shared_ptr<GenerationConsumer>(std::shared_ptr<void>(), consumer));
}

class RecordingConsumer final : public GenerationConsumer {
 public:
  explicit RecordingConsumer(EngineThread& engine) : engine_(engine) {}

  absl::Status Deliver(size_t, v1::GenerateDelta event, RequestId sequence,
                       int64_t tokens) override {
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
