// AnswerReader: splits the answer of a chat, as it comes, into a thought, text and the calls that
// its grammar allows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fox/v1/inference.pb.h"
#include "models/tokenizer/chat_format.h"
#include "models/tokenizer/stop_matcher.h"
#include "server/http/openai/completion_request.h"

namespace fox {

// Tells if a JSON text, as far as it was read, ends inside a string.
class JsonQuotes {
 public:
  void Read(char byte) {
    if (byte == '"' && !escaped_) open_ = !open_;
    escaped_ = byte == '\\' && !escaped_;
  }
  bool open() const { return open_; }

 private:
  bool open_ = false, escaped_ = false;
};

// An addition to one part of an answer: to a thought, to the text, or to a tool call.
struct AnswerPart {
  enum class Kind { kThought, kText, kCall };
  Kind kind = Kind::kText;
  std::string text = {};           // of a call: of its arguments
  size_t call = 0;                 // the number of the call
  std::string id = {}, name = {};  // of a call that begins; "": it has begun before
};

// The form of an answer, as its request has it.
struct AnswerForm {
  const ToolFormat* tools = nullptr;         // null: it has no calls
  bool calls_only = false;                   // the grammar allows no text
  const ThinkingFormat* thinking = nullptr;  // null: a thought is text
  bool begins_in_thought = false;            // the prompt ends with the beginning of one

  // `format` must outlive the answer.
  static AnswerForm Of(const v1::GenerateRequest& settings, const v1::ChatMessages& chat,
                       const ChatFormat& format);
};

// Not thread-safe.
class AnswerReader {
 public:
  explicit AnswerReader(const AnswerForm& form);

  // Splits `piece` into parts, in order; what continues the last of `parts` joins it. Text that may
  // be the beginning of a call, or of the end of a thought, waits. Line ends around a thought are
  // the format's, and belong to no part.
  void Read(absl::string_view piece, std::vector<AnswerPart>* parts);
  // The answer has ended: text that waits is told, unless a call has begun in it. `cut`: the model
  // did not end the answer, and might have gone on with a call.
  void EndText(bool cut, std::vector<AnswerPart>* parts);
  size_t calls() const { return calls_; }  // that are whole
  bool in_thought() const { return place_ == Place::kThought; }

 private:
  enum class Place { kStart, kThought, kThoughtEnd, kText, kName, kArguments, kCallEnd };
  void ReadByte(char byte, std::vector<AnswerPart>* parts);
  void ReadStart(char byte, std::vector<AnswerPart>* parts);
  void ReadThought(char byte, std::vector<AnswerPart>* parts);
  void ReadText(char byte, std::vector<AnswerPart>* parts);
  void ReadArgument(char byte, std::vector<AnswerPart>* parts);
  // Tells the first `bytes` of `held_`.
  void TellHeld(AnswerPart::Kind kind, size_t bytes, std::vector<AnswerPart>* parts);

  const AnswerForm form_;
  const std::vector<std::string> openings_;  // of a call
  StopMatcher call_matcher_, thought_matcher_;
  Place place_;
  // Text that is not told yet: the beginning of a tag, a name, or line ends of a thought.
  std::string held_;
  bool thought_begun_ = false;  // a part of it was told
  int depth_ = 0;               // of brackets in the arguments
  JsonQuotes quotes_;           // in the arguments
  size_t calls_ = 0;
};

// The one answer of a chat as its events come, for APIs that answer with a list of blocks.
struct ChatAnswer {
  // Both must outlive the answer.
  ChatAnswer(const CompletionRequest& request, const ConversionContext& context);

  // The parts that an event adds, in order. Afterwards the numbers below are those so far.
  std::vector<AnswerPart> Read(const v1::GenerateDelta& event);
  // `,"fox":{...}`, of an answer that has ended.
  std::string Fox() const;

  uint32_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
  uint32_t thought_tokens = 0;  // if the request asks for token ids
  v1::Finish finish;            // once it has ended
  bool called = false;          // it has ended with calls, by itself

 private:
  const ConversionContext& context_;
  AnswerReader reader_;
  std::vector<std::string> relaxed_;
};

}  // namespace fox
