// RecordedCall: a Call between a test's format and transport. EventFormat gets its specs from a
// function, and each write of a stream is one event; RecordingTransport keeps the events, and takes
// each write at once or when the test says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"
#include "gtest/gtest.h"
#include "server/calls/call.h"
#include "tests/fixtures/test_core.h"

namespace fox {

// Counts of an EventFormat, which outlive it.
struct FormatRecord {
  std::atomic<int> parsed{0}, converted{0}, dropped{0}, kept_alive{0};
};

// Prompts of 1 byte, converted by a function. An event takes 100 bytes until it is written.
class EventFormat final : public Format {
 public:
  using Convert = std::function<absl::StatusOr<GenerationSpec>(size_t prompt)>;

  EventFormat(Convert convert, bool stream, size_t prompts, std::shared_ptr<FormatRecord> record)
      : convert_(std::move(convert)),
        outline_{std::vector<int64_t>(prompts, 1), stream},
        record_(std::move(record)) {}

  absl::StatusOr<CallOutline> ParseMessage() override {
    ++record_->parsed;
    return outline_;
  }
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t prompt) override {
    ++record_->converted;
    return convert_(prompt);
  }
  void AddEvent(CallEvent event) override { events_.push_back(std::move(event)); }
  void AddKeepAlive() override { ++record_->kept_alive; }
  bool HasOutput() const override { return !events_.empty(); }
  Output TakeOutput(bool) override {
    Output output;
    const size_t count = outline_.stream ? std::min<size_t>(1, events_.size()) : events_.size();
    for (size_t i = 0; i < count; ++i) {
      const CallEvent& event = events_[i];
      const std::string bytes = event.delta.SerializeAsString();
      output.bytes += std::to_string(bytes.size()) + ":" + bytes;
      if (event.tokens > 0) output.tokens.emplace_back(event.sequence, event.tokens);
    }
    events_.erase(events_.begin(), events_.begin() + static_cast<int64_t>(count));
    return output;
  }
  int64_t held_bytes() const override { return 100 * static_cast<int64_t>(events_.size()); }
  void DropContents() override {
    ++record_->dropped;
    events_.clear();
  }
  std::string EncodeFailure(const absl::Status& status, bool stream_has_begun) const override {
    return std::string(status.message()) + (stream_has_begun ? " (late)" : "");
  }

 private:
  const Convert convert_;
  const CallOutline outline_;
  const std::shared_ptr<FormatRecord> record_;
  std::vector<CallEvent> events_;
};

// The events of an EventFormat's bytes.
inline std::vector<v1::GenerateDelta> EventsOf(const std::string& bytes) {
  std::vector<v1::GenerateDelta> events;
  for (size_t at = 0; at < bytes.size();) {
    const size_t colon = bytes.find(':', at);
    const size_t size = std::stoul(bytes.substr(at, colon - at));
    EXPECT_TRUE(events.emplace_back().ParseFromString(bytes.substr(colon + 1, size)))
        << "event " << events.size();
    at = colon + 1 + size;
  }
  return events;
}

class RecordingTransport final : public Transport {
 public:
  // `fast`: each write is taken at once, and the end, too.
  explicit RecordingTransport(bool fast = true) : fast_(fast) {}

  void SetCall(std::weak_ptr<Call> call) { call_ = std::move(call); }
  std::shared_ptr<Call> call() const { return call_.lock(); }

  void Write(std::string bytes) override {
    {
      const MutexLock lock(mutex_);
      EXPECT_FALSE(writing_) << "two writes at a time";
      EXPECT_FALSE(ended_) << "a write after the end";
      writing_ = true;
      ++writes_;
      bytes_ += bytes;
    }
    if (fast_) TakeWrite();
  }
  void EndAnswer(const absl::Status& status, std::string bytes, int64_t) override {
    {
      const MutexLock lock(mutex_);
      EXPECT_FALSE(writing_) << "an end before the write was taken";
      EXPECT_FALSE(ended_) << "two ends";
      ended_ = true;
      (status.ok() ? bytes_ : failure_) += bytes;
    }
    if (fast_) Release();
    end_.set_value(status);
  }
  void AbandonReader(const absl::Status&) override { ++abandoned_; }

  // The reader takes the write in flight. False: there is none.
  bool TakeWrite() {
    {
      const MutexLock lock(mutex_);
      if (!std::exchange(writing_, false)) return false;
    }
    if (const auto call = call_.lock()) call->OnWritten();
    return true;
  }
  void Release() {
    if (const auto call = call_.lock()) call->OnReleased();
  }

  // Waits for the end, which must come once.
  absl::Status WaitForEnd() { return end_.get_future().get(); }
  bool ended() const { return Locked(ended_); }
  int writes() const { return Locked(writes_); }
  int abandoned() const { return abandoned_; }
  std::string failure() const { return Locked(failure_); }
  std::vector<v1::GenerateDelta> events() const { return EventsOf(Locked(bytes_)); }
  // The deltas' text of one sequence.
  std::string Text(uint32_t index = 0) const {
    std::string text;
    for (const v1::GenerateDelta& event : events()) {
      if (event.has_delta() && event.delta().index() == index) text += event.delta().text();
    }
    return text;
  }

 private:
  template <class T>
  T Locked(const T& member) const {
    const MutexLock lock(mutex_);
    return member;
  }

  const bool fast_;
  std::weak_ptr<Call> call_;
  mutable Mutex mutex_;
  bool writing_ = false, ended_ = false;
  int writes_ = 0;
  std::atomic<int> abandoned_{0};
  std::string bytes_, failure_;
  std::promise<absl::Status> end_;  // throws when it is set twice
};

// A call that is started by Start.
struct RecordedCall {
  RecordedCall(ServerCore& core, CallInfo info, EventFormat::Convert convert, bool stream = true,
               size_t prompts = 1, bool fast = true)
      : transport(std::make_shared<RecordingTransport>(fast)),
        call(std::make_shared<Call>(
            core, std::move(info), Call::Work::kGenerate,
            std::make_unique<EventFormat>(std::move(convert), stream, prompts, record),
            transport)) {
    transport->SetCall(call);
  }
  RecordedCall& Start() {
    call->Start(/*bytes=*/1);
    return *this;
  }

  const std::shared_ptr<FormatRecord> record = std::make_shared<FormatRecord>();
  const std::shared_ptr<RecordingTransport> transport;
  std::shared_ptr<Call> call;
};

// The specs of a streamed request, with `id`, and behind it the prompt's number but for the first.
inline EventFormat::Convert Converting(TestCore& test, const v1::GenerateRequest& request,
                                       const std::string& id = "call") {
  return [&test, request, id](size_t prompt) {
    absl::StatusOr<GenerationSpec> spec =
        ConvertGenerate(request, /*stream=*/true, test.core->context);
    if (spec.ok()) spec->request_id = prompt == 0 ? id : absl::StrCat(id, "-", prompt);
    return spec;
  };
}

}  // namespace fox
