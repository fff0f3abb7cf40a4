// AnswerFormat: base of the forms whose answer is made of the message alone, without prompts.
#pragma once

#include <string>
#include <utility>

#include "server/calls/format.h"

namespace fox {

class AnswerFormat : public Format {
 public:
  absl::StatusOr<CallOutline> ParseMessage() final {
    absl::StatusOr<std::string> answer = MakeAnswer();
    if (!answer.ok()) return answer.status();
    answer_ = *std::move(answer);
    return CallOutline();
  }
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t) final {
    return absl::InternalError("the call has no prompts");
  }
  void AddEvent(CallEvent) final {}
  bool HasOutput() const final { return false; }
  Output TakeOutput(bool) final { return {std::exchange(answer_, {}), {}}; }
  int64_t held_bytes() const final { return static_cast<int64_t>(answer_.size()); }
  void DropContents() final {
    DropMessage();
    answer_ = {};
  }

 private:
  // On an admission thread: the answer to the message, which it lets go of.
  virtual absl::StatusOr<std::string> MakeAnswer() = 0;
  virtual void DropMessage() = 0;

  std::string answer_;
};

}  // namespace fox
