// ChatFormat: a conversation as the model was trained to read it. chat_format.json, which
// models/convert derives from the checkpoint's template, holds
//
//   {"bos": "", "default_system": null | "text",
//    "roles": {"user": {"prefix": "..", "suffix": "..", "trim": false}, "assistant": {..},
//              "system": {..}},
//    "generation_prompt": "..", "end": "", "alternate": false}
//
// The text is bos, then prefix, content and suffix of every message, then generation_prompt, or end
// where none is asked for. `default_system` is the content of a system message in front of
// conversations without one. `trim`: white space around the content goes. `alternate`: user and
// assistant take turns, user first. A format without "system" has no place for such messages.
#pragma once

#include <cstdint>
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

struct ChatMessage {
  std::string role;  // "system" (first only), "user" or "assistant"
  std::string content;
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
  // end behind the content of the last message, which is the assistant's.
  // InvalidArgument, for a client, names the message ("messages[2].role: ..").
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer,
                                              absl::Span<const ChatMessage> messages,
                                              bool add_generation_prompt,
                                              bool continue_final_message) const;

  // What the model writes at the end of its turn, to stop at: a special token, or else a text.
  std::optional<int32_t> stop_id() const { return stop_id_; }
  const std::string& stop_text() const { return stop_text_; }  // "": there is none

 private:
  struct Role {
    std::string prefix, suffix;
    bool trim = false;
  };

  absl::Status Read(const nlohmann::json& json);
  void FindAddedTokens(const Tokenizer& tokenizer);
  absl::Status Check(absl::Span<const ChatMessage> messages, bool add_generation_prompt,
                     bool continue_final_message) const;

  std::string bos_, generation_prompt_, end_;
  std::optional<std::string> default_system_;
  std::map<std::string, Role> roles_;
  bool alternate_ = false;
  AddedTokenSplitter added_;
  std::optional<int32_t> stop_id_;
  std::string stop_text_;
};

}  // namespace fox
