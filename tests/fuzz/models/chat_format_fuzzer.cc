// chat_format.json and two contents: the ids of a conversation spell its text, which is written
// here from the definition, and contents never add a control token.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/tokenizer/chat_format.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace fox {
namespace {

constexpr int32_t kFirstControl = 258;

const Tokenizer& SmallTokenizer() {
  static const auto* const tokenizer = [] {
    BpeDefinition definition = SmallDefinition();
    definition.added = {{.content = "<|endoftext|>", .id = 258, .special = true, .file = "V"},
                        {.content = "<s>", .id = 259, .special = true, .file = "V"},
                        {.content = "<t>", .id = 260, .file = "V"}};
    return ByteLevelBpe::Create(definition, 261)->release();
  }();
  return *tokenizer;
}

size_t Controls(const std::vector<int32_t>& ids) {
  return static_cast<size_t>(
      std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= kFirstControl; }));
}

// The text of a conversation. REQUIRES: trimming does not change the contents, which hold no
// thought.
std::string TextOf(const nlohmann::json& format, const std::vector<ChatMessage>& messages) {
  const auto text = [](const nlohmann::json& object, const char* key) {
    return object.contains(key) && !object[key].is_null() ? object[key].get<std::string>() : "";
  };
  const auto turn = [&](const std::string& role, const std::string& content) {
    const nlohmann::json& ends = format["roles"][role];
    return text(ends, "prefix") + content + text(ends, "suffix");
  };
  std::string whole = text(format, "bos");
  if (format.contains("default_system") && !format["default_system"].is_null()) {
    whole += turn("system", text(format, "default_system"));
  }
  for (const ChatMessage& message : messages) whole += turn(message.role, message.content);
  return whole + text(format, "generation_prompt");
}

}  // namespace

FUZZ_TEST(chat_format) {
  const std::vector<std::string> parts = in.Sections(3);
  const absl::StatusOr<ChatFormat> format = ChatFormat::Parse(parts[0], SmallTokenizer());
  if (!format.ok()) return CheckRefusal(format.status());
  const auto encode = [&](const std::string& user, const std::string& assistant) {
    const std::vector<ChatMessage> messages = {
        {"user", user}, {"assistant", assistant}, {"user", user}};
    return format->Encode(SmallTokenizer(), messages, true, false);
  };
  const auto plain = encode("x", "y");
  FOX_CHECK(plain.ok());
  FOX_CHECK(
      Detokenize(SmallTokenizer(), *plain, false) ==
      TextOf(nlohmann::json::parse(parts[0]), {{"user", "x"}, {"assistant", "y"}, {"user", "x"}}));
  const auto ids = encode(parts[1], parts[2]);
  if (!ids.ok()) return CheckRefusal(ids.status());
  FOX_CHECK(Controls(*ids) == Controls(*plain));
}

}  // namespace fox
