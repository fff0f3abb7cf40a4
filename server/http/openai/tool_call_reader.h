// ToolCallReader: splits an answer, as it comes, into text and the calls that its grammar allows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/tokenizer/chat_format.h"
#include "models/tokenizer/stop_matcher.h"

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

// The part of a call that a piece of text has added.
struct ToolCallPart {
  size_t index = 0;
  std::string id = {}, name = {};  // "": the call has begun before
  std::string arguments = {};
};

// Not thread-safe. `format` must outlive it. `calls_only`: the grammar allows no text.
class ToolCallReader {
 public:
  explicit ToolCallReader(const ToolFormat& format, bool calls_only = false);

  // Splits `piece`: text goes to `content`, calls go to `parts` in order; arguments join the last
  // part. Text that may be the beginning of a call waits.
  void Read(absl::string_view piece, std::string* content, std::vector<ToolCallPart>* parts);
  // The answer has ended: text that waits is content, unless a call has begun in it. `cut`: the
  // model did not end the answer, and might have gone on with a call.
  void EndText(bool cut, std::string* content);
  size_t calls() const { return calls_; }  // that are whole

 private:
  enum class Place { kText, kName, kArguments, kEnd };
  void ReadText(char byte, std::string* content);
  void ReadArgument(char byte);

  const ToolFormat& format_;
  const bool calls_only_;
  const std::vector<std::string> openings_;
  StopMatcher matcher_;
  Place place_ = Place::kText;
  std::string held_;   // a part of the text before a call, of its name or of its end
  int depth_ = 0;      // of brackets in the arguments
  JsonQuotes quotes_;  // in the arguments
  size_t calls_ = 0;
};

}  // namespace fox
