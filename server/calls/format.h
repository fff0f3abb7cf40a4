// Format: one wire form of a call, such as fox.v1's GenerateStream or OpenAI's chat completions:
// the client's message becomes requests, events become the bytes of the answer. A format belongs to
// one call and knows no thread, lock or connection. Read call.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/conversion/request_conversion.h"

namespace fox {

// An event of one prompt's sequence, to be written.
struct CallEvent {
  size_t prompt = 0;  // the prompt's index in the call
  v1::GenerateDelta delta;
  RequestId sequence = 0;
  // Tokens of `sequence` in `delta`; EngineThread::Acknowledge them once the reader has them.
  int64_t tokens = 0;
};

// The prompts that a call asks for, and how it wants the answer.
struct CallOutline {
  // The bytes that each prompt takes of the budget; the first prompt's are the whole message.
  // Empty: nothing is generated, and TakeOutput has the answer.
  std::vector<int64_t> prompt_bytes;
  bool stream = false;  // events are written as they come, else all at the end
};

class Format {
 public:
  // The part of the answer that one write brings.
  struct Output {
    std::string bytes;
    std::vector<std::pair<RequestId, int64_t>> tokens;  // by sequence
  };

  virtual ~Format() = default;

  // On an admission thread, without the call's lock: may take long. First ParseMessage, once; then
  // ConvertPrompt for each prompt in order. The message is let go of as soon as it is not needed.
  // Errors name the field.
  virtual absl::StatusOr<CallOutline> ParseMessage() = 0;
  virtual absl::StatusOr<GenerationSpec> ConvertPrompt(size_t prompt) = 0;

  // Under the call's lock, once all prompts or the prompt of the event were converted.
  // Keeps an event until TakeOutput. Events of a sequence that wait may become one.
  virtual void AddEvent(CallEvent event) = 0;
  // Adds to a stream something that means nothing, because proxies close silent connections.
  virtual void AddKeepAlive() {}
  // True if TakeOutput would have something to write in a stream.
  virtual bool HasOutput() const = 0;
  // Takes the next write. `last`: all prompts have ended; unless HasOutput afterwards, this write
  // is the answer's last, and has the form's own end.
  virtual Output TakeOutput(bool last) = 0;
  // The memory, in bytes, that waiting events and the answer so far take.
  virtual int64_t held_bytes() const = 0;
  // The call has failed: drops the message, events and answer.
  virtual void DropContents() = 0;

  // The failure as clients of this form expect it: the body of an answer, or, where a stream has
  // begun, its last bytes. May be called while another thread is in ParseMessage or ConvertPrompt.
  virtual std::string EncodeFailure(const absl::Status& status, bool stream_has_begun) const = 0;
};

// The form of a call without prompts, whose answer is made of the message alone.
class AnswerFormat final : public Format {
 public:
  using MakeAnswer = std::function<absl::StatusOr<std::string>()>;
  // `make_answer` owns the message, and runs once, on an admission thread.
  AnswerFormat(MakeAnswer make_answer, std::string (*encode_failure)(const absl::Status&))
      : make_answer_(std::move(make_answer)), encode_failure_(encode_failure) {}

  absl::StatusOr<CallOutline> ParseMessage() override {
    absl::StatusOr<std::string> answer = std::exchange(make_answer_, nullptr)();
    if (!answer.ok()) return answer.status();
    answer_ = *std::move(answer);
    return CallOutline();
  }
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t) override {
    return absl::InternalError("the call has no prompts");
  }
  void AddEvent(CallEvent) override {}
  bool HasOutput() const override { return false; }
  Output TakeOutput(bool) override { return {std::exchange(answer_, {}), {}}; }
  int64_t held_bytes() const override { return static_cast<int64_t>(answer_.size()); }
  void DropContents() override {
    make_answer_ = nullptr;
    answer_ = {};
  }
  std::string EncodeFailure(const absl::Status& status, bool) const override {
    return encode_failure_(status);
  }

 private:
  MakeAnswer make_answer_;
  std::string (*const encode_failure_)(const absl::Status&);
  std::string answer_;
};

}  // namespace fox
