// ChatFormat: a conversation as the model was trained to read it. chat_format.json, which
// models/convert derives from the checkpoint's template, holds
//
//   {"bos": "", "default_system": null | "text",
//    "roles": {"user": {"prefix": "..", "suffix": "..", "trim": false}, "assistant": {..},
//              "system": {..}},
//    "generation_prompt": "..", "end": "", "alternate": false, "later_system": true,
//    "tools": {"prefix": "..", ..}, "thinking": {"prefix": "..", ..}}
//
// The text is bos, then prefix, content and suffix of every message, then generation_prompt, or end
// where none is asked for. `default_system` is the content of a system message in front of
// conversations without one. `trim`: white space around the content goes. `alternate`: user and
// assistant take turns, user first. `later_system`: the system may speak behind the first message,
// too. A format without "system" has no place for such messages, and
// one without "tools" (ToolFormat's texts, and a role "tool" of their answers) none for those.
// Without "thinking" (ThinkingFormat's texts) a thought is a part of its content. In each text of
// the format {{strftime_now("%d %b %Y")}} is the local date of the request, as C's strftime has it.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace fox {

struct ToolCall {
  std::string name, arguments;
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  std::vector<ToolCall> calls = {};  // the assistant's
};

// Tools follow the content of the system message: prefix, `tool` before each, suffix;
// `prefix_alone` where there is no such message. A call is `call`, the name, `arguments`, these and
// `call_end`, behind `separator` if it is not the first thing of a message.
struct ToolFormat {
  std::string prefix, prefix_alone, tool, suffix;
  std::string separator, call, arguments, call_end;
  std::string next_response;  // between two messages of tools
  std::string trigger;        // the tag that `call` begins with
};

// A thought is what an answer holds up to `end`, behind `start` if that is there. It is dropped
// from answers that a question follows. In those behind the last question it stands between prefix
// and suffix; the last message has these even around nothing. A question is a user's content that
// does not lie between response_start and response_end, as a tool's answer. Where thinking is
// turned off, `skip` follows generation_prompt; "": it cannot be turned off. Unless `kept`,
// thoughts are dropped from all answers, and with `strip` line ends that an answer then begins
// with, too.
struct ThinkingFormat {
  std::string prefix, suffix, skip, response_start, response_end;
  bool kept = true, strip = false;
  std::string start = {}, end = {};  // prefix and suffix without white space

  bool IsQuestion(const std::string& role, const std::string& content) const;
};

// Immutable; all methods may be called from any thread.
class ChatFormat {
 public:
  static constexpr size_t kMaxMessages = 4096;
  static constexpr size_t kMaxTextBytes = size_t{8} << 20;  // of the whole conversation

  // Reads `dir`/chat_format.json; nullopt when there is none. InvalidArgument names file and key.
  static absl::StatusOr<std::optional<ChatFormat>> Load(const std::string& dir,
                                                        const Tokenizer& tokenizer);
  static absl::StatusOr<ChatFormat> Parse(const std::string& json, const Tokenizer& tokenizer);

  // The ids of a conversation; `tokenizer` is the one given to Load. Added tokens count in the
  // format's own strings only: those in a content are text. With `continue_final_message` the ids
  // end behind the content of the last message, which is the assistant's. REQUIRES: tools() where
  // there are any; each is a text. Dates are those of `now`. FailedPrecondition: enable_thinking,
  // of a format without `skip`. InvalidArgument, for a client, names the message
  // ("messages[2].role: ..").
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer,
                                              absl::Span<const ChatMessage> messages,
                                              bool add_generation_prompt,
                                              bool continue_final_message,
                                              absl::Span<const std::string> tools = {},
                                              std::optional<bool> enable_thinking = {},
                                              std::time_t now = std::time(nullptr)) const;

  const std::optional<ToolFormat>& tools() const { return tools_; }
  const std::optional<ThinkingFormat>& thinking() const { return thinking_; }
  // What the model writes at the end of its turn, to stop at: a special token, or else a text.
  std::optional<int32_t> stop_id() const { return stop_id_; }
  const std::string& stop_text() const { return stop_text_; }  // "": there is none

 private:
  struct Role {
    std::string prefix, suffix;
    bool trim = false;
  };

  absl::Status Read(const nlohmann::json& json);
  absl::Status ReadTools(const nlohmann::json& json);
  absl::Status ReadThinking(const nlohmann::json& json);
  void FindAddedTokens(const Tokenizer& tokenizer);
  absl::Status Check(absl::Span<const ChatMessage> messages, bool add_generation_prompt,
                     bool continue_final_message) const;

  std::string bos_, generation_prompt_, end_;
  std::optional<std::string> default_system_;
  std::map<std::string, Role> roles_;
  bool alternate_ = false, later_system_ = false;
  std::optional<ToolFormat> tools_;
  std::optional<ThinkingFormat> thinking_;
  AddedTokenSplitter added_;
  std::optional<int32_t> stop_id_;
  std::string stop_text_;
};

}  // namespace fox
