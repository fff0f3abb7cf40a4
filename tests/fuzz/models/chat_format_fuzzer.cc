// chat_format.json and two contents: the ids of a conversation spell its text, written here from
// the definition, and contents add no control token, whatever format and contents hold.
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

std::string TextAt(const nlohmann::json& object, const char* key) {
  return object.contains(key) && !object[key].is_null() ? object[key].get<std::string>() : "";
}

// What the last answer has in front, unless the user's content is a tool's answer.
std::string EmptyThought(const nlohmann::json& format, const std::string& user) {
  const nlohmann::json thinking = format.value("thinking", nlohmann::json());
  const bool asked =
      thinking.is_object() && !(user.starts_with(TextAt(thinking, "response_start")) &&
                                user.ends_with(TextAt(thinking, "response_end")));
  return asked ? TextAt(thinking, "prefix") + TextAt(thinking, "suffix") : "";
}

// For contents that trimming leaves as they are, and without thoughts.
std::string TextOf(const nlohmann::json& format, const std::vector<ChatMessage>& messages) {
  const auto turn = [&](const std::string& role, const std::string& content) {
    const nlohmann::json& ends = format["roles"][role];
    return TextAt(ends, "prefix") + content + TextAt(ends, "suffix");
  };
  std::string whole = TextAt(format, "bos");
  if (format.contains("default_system") && !format["default_system"].is_null()) {
    whole += turn("system", TextAt(format, "default_system"));
  }
  whole += turn("user", messages[0].content);
  whole += turn("assistant", EmptyThought(format, messages[0].content) + messages[1].content);
  return whole + TextAt(format, "generation_prompt");
}

}  // namespace

FUZZ_TEST(chat_format) {
  const std::vector<std::string> parts = in.Sections(3);
  const absl::StatusOr<ChatFormat> format = ChatFormat::Parse(parts[0], SmallTokenizer());
  if (!format.ok()) return CheckRefusal(format.status());
  const auto encode = [&](const std::string& user, const std::string& assistant) {
    const std::vector<ChatMessage> messages = {{"user", user}, {"assistant", assistant}};
    return format->Encode(SmallTokenizer(), messages, true, false);
  };
  const auto plain = encode("x", "y");
  FOX_CHECK(plain.ok());
  const nlohmann::json json = nlohmann::json::parse(parts[0]);
  FOX_CHECK(Detokenize(SmallTokenizer(), *plain, false) ==
            TextOf(json, {{"user", "x"}, {"assistant", "y"}}));
  const auto ids = encode(parts[1], parts[2]);
  if (!ids.ok()) return CheckRefusal(ids.status());
  if (EmptyThought(json, parts[1]) != EmptyThought(json, "x")) return;
  FOX_CHECK(Controls(*ids) == Controls(*plain));
}

}  // namespace fox
