// ChatFormat: a conversation as the model was trained to read it. chat_format.json, which
// models/convert derives from the checkpoint's template, holds
//
//   {"bos": "", "default_system": null | "text",
//    "roles": {"user": {"prefix": "..", "suffix": "..", "trim": false}, "assistant": {..},
//              "system": {..}},
//    "generation_prompt": "..", "end": "", "alternate": false, "later_system": true,
//    "system_alone": true,
//    "tools": {"prefix": "..", ..}, "thinking": {"prefix": "..", ..}}
//
// The text is bos; then prefix, content and suffix of every message; then generation_prompt, or end
// if no generation prompt is asked for. `default_system` is the content of a system message that is
// put before a conversation without one. `trim`: white space around the content is removed.
// `alternate`: user and assistant take turns, user first. `later_system`: a system message may
// follow other messages. `system_alone`: no other message has to follow it. A format without the
// role "system" refuses system messages. A format without "tools" (the texts of ToolFormat, beside
// a role "tool" for the tools' answers) refuses tools. Without "thinking" (the texts of
// ThinkingFormat) a thought is a part of its content. In each text of the format
// {{strftime_now("%d %b %Y")}} becomes the local date of the request, by C's strftime.
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

// Tools follow the content of the system message: `prefix`, then `tool` before each, then `suffix`.
// Without a system message, `prefix_alone` replaces `prefix`. A call is written as `call`, the
// name, `arguments`, the arguments and `call_end`, with `separator` before it unless the message
// begins with it.
struct ToolFormat {
  std::string prefix, prefix_alone, tool, suffix;
  std::string separator, call, arguments, call_end;
  std::string next_response;  // between two answers of tools
  std::string trigger;        // the tag that `call` begins with
};

// A thought is the text of an answer before `end`, without `start` if it begins with that. Answers
// before the last question lose their thoughts; answers after it have theirs between `prefix` and
// `suffix`, and the last message has these two even without a thought. A question is the content
// of a user, except content between response_start and response_end, which is a tool's answer. If
// thinking is turned off, `skip` follows generation_prompt; "": it cannot be turned off. Unless
// `kept`, all answers lose their thoughts, and with `strip` also the line ends behind them.
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

  // The ids of a conversation; `tokenizer` must be the argument of Load. Added tokens are
  // recognised in the format's own strings only; in a content they are text. With
  // `continue_final_message` the ids end after the content of the last message, which must be the
  // assistant's. `now` is the time of the dates. REQUIRES: `tools` is empty unless the format has
  // tools(). FailedPrecondition: the format has no `skip`, and enable_thinking has a value.
  // InvalidArgument names the message for the client ("messages[2].role: ..").
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer,
                                              absl::Span<const ChatMessage> messages,
                                              bool add_generation_prompt,
                                              bool continue_final_message,
                                              absl::Span<const std::string> tools = {},
                                              std::optional<bool> enable_thinking = {},
                                              std::time_t now = std::time(nullptr)) const;

  const std::optional<ToolFormat>& tools() const { return tools_; }
  const std::optional<ThinkingFormat>& thinking() const { return thinking_; }
  // True if a system message may follow other messages.
  bool later_system() const { return later_system_; }
  // True if a thought begins in the generation prompt: an answer begins inside of it.
  bool opens_thought() const { return opens_thought_; }
  // The end of the model's turn, at which to stop: a special token, or a text if there is none.
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
  bool alternate_ = false, later_system_ = false, system_alone_ = false, opens_thought_ = false;
  std::optional<ToolFormat> tools_;
  std::optional<ThinkingFormat> thinking_;
  AddedTokenSplitter added_;
  std::optional<int32_t> stop_id_;
  std::string stop_text_;
};

}  // namespace fox
