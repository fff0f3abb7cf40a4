// Reads a format, checks a conversation and encodes it, so that contents stay text. See
// chat_format.h.
#include "models/tokenizer/chat_format.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kFile[] = "chat_format.json";
constexpr JsonLimits kLimits{.max_bytes = 64 << 10, .max_depth = 4, .max_values = 64};

// True for a character that Python's str.strip() removes: White_Space and a few more. Templates are
// rendered with it.
bool IsStripped(uint32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view Stripped(std::string_view text) {
  size_t begin = text.size(), end = text.size();
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    if (!IsStripped(unit.code_point)) {
      begin = std::min(begin, at);
      end = at + unit.length;
    }
    at += unit.length;
  }
  return begin < text.size() ? text.substr(begin, end - begin) : "";
}

std::string_view WithoutFirstNewlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

// The thought and the content of an answer.
std::pair<std::string_view, std::string_view> SplitThought(std::string_view text,
                                                           const ThinkingFormat& format) {
  const size_t end = text.find(format.end);
  if (end == text.npos) return {"", text};
  std::string_view thought = text.substr(0, end);
  const size_t start = thought.rfind(format.start);
  if (start != text.npos) thought.remove_prefix(start + format.start.size());
  thought = WithoutFirstNewlines(thought.substr(0, thought.find_last_not_of('\n') + 1));
  return {thought, WithoutFirstNewlines(text.substr(text.rfind(format.end) + format.end.size()))};
}

// The content of an answer, if the format keeps no thoughts.
std::string_view WithoutThought(std::string_view text, const ThinkingFormat& format) {
  const size_t end = text.rfind(format.end);
  if (end != text.npos) text.remove_prefix(end + format.end.size());
  return format.strip ? WithoutFirstNewlines(text) : text;
}

// `text` with each strftime_now replaced by the date of `now`.
std::string Dated(std::string text, std::time_t now) {
  constexpr std::string_view kOpen = "{{strftime_now(\"", kClose = "\")}}";
  std::tm local = {};
  localtime_r(&now, &local);
  for (size_t at = text.find(kOpen); at != text.npos; at = text.find(kOpen, at)) {
    const size_t begin = at + kOpen.size(), end = text.find(kClose, begin);
    if (end == text.npos) return text;
    char date[256];
    const size_t size =
        std::strftime(date, sizeof(date), text.substr(begin, end - begin).c_str(), &local);
    text.replace(at, end + kClose.size() - at, date, size);
    at += size;
  }
  return text;
}

// The index of the last question; messages.size() if there is none.
size_t LastQuestion(absl::Span<const ChatMessage> messages, const ThinkingFormat& format) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (format.IsQuestion(messages[i].role, messages[i].content)) return i;
  }
  return messages.size();
}

// Encodes a text that consists of marks (the format's own strings), in which added tokens are
// recognised, and of contents, in which they are not. Neighbouring marks are one string. Plain text
// of a mark is encoded together with the contents around it, as "[INST] " with the message after
// it, because the reference tokenizes all text between two added tokens as a whole.
class MarkedText {
 public:
  MarkedText(const Tokenizer& tokenizer, const AddedTokenSplitter& added, std::time_t now)
      : tokenizer_(tokenizer), added_(added), now_(now) {}

  void Mark(const std::string& text) { mark_ += text; }
  void Content(std::string_view text) {
    Cut();
    plain_ += text;
  }
  absl::StatusOr<std::vector<int32_t>> Finish() {
    Cut();
    EncodePlain();
    FOX_CHECK(mark_.empty() && (plain_.empty() || !status_.ok()));
    if (!status_.ok()) return status_;
    return std::move(ids_);
  }

 private:
  void Cut() {
    added_.Split(Dated(std::move(mark_), now_), [this](const TextPart& part) {
      if (part.id == TextPart::kText) {
        plain_ += part.text;
      } else {
        EncodePlain();
        ids_.push_back(part.id);
      }
    });
    mark_.clear();
  }
  void EncodePlain() {
    if (plain_.empty() || !status_.ok()) return;
    const auto ids = tokenizer_.EncodeAsText(plain_, ids_.empty());
    if (!ids.ok()) {
      status_ = ids.status();
    } else {
      ids_.insert(ids_.end(), ids->begin(), ids->end());
    }
    plain_.clear();
  }

  const Tokenizer& tokenizer_;
  const AddedTokenSplitter& added_;
  const std::time_t now_;
  std::string mark_, plain_;
  std::vector<int32_t> ids_;
  absl::Status status_;
};

absl::Status BadMessage(size_t index, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("messages[", index, "]", problem));
}

}  // namespace

bool ThinkingFormat::IsQuestion(const std::string& role, const std::string& content) const {
  const bool of_tool = !response_start.empty() && content.starts_with(response_start) &&
                       content.ends_with(response_end);
  return role == "user" && !of_tool;
}

absl::StatusOr<std::optional<ChatFormat>> ChatFormat::Load(const std::string& dir,
                                                           const Tokenizer& tokenizer) {
  const absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  if (!model_dir->Contains(kFile)) return std::nullopt;
  const absl::StatusOr<std::string> text = model_dir->ReadText(kFile, kLimits.max_bytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<ChatFormat> format = Parse(*text, tokenizer);
  if (!format.ok()) return format.status();
  return *std::move(format);
}

absl::StatusOr<ChatFormat> ChatFormat::Parse(const std::string& json, const Tokenizer& tokenizer) {
  const absl::StatusOr<Json> object = ReadJsonObject(json, kLimits, kFile);
  if (!object.ok()) return object.status();
  ChatFormat format;
  if (absl::Status status = format.Read(*object); !status.ok()) return status;
  format.FindAddedTokens(tokenizer);
  return format;
}

absl::Status ChatFormat::Read(const Json& json) {
  KeyReader keys(json, kFile);
  bos_ = keys.String("bos", "");
  generation_prompt_ = keys.String("generation_prompt", "");
  end_ = keys.String("end", "");
  alternate_ = keys.Bool("alternate", false);
  later_system_ = keys.Bool("later_system", false);
  system_alone_ = keys.Bool("system_alone", false);
  if (keys.Find("default_system") != nullptr) default_system_ = keys.String("default_system", "");
  const Json* roles = keys.Find("roles");
  if (roles == nullptr || !roles->is_object()) keys.Invalid("roles", "must be an object");
  if (!keys.status().ok()) return keys.status();
  for (const auto& [name, value] : roles->items()) {
    const bool known = name == "system" || name == "user" || name == "assistant" || name == "tool";
    if (!known || !value.is_object()) {
      return InvalidFile(kFile, absl::StrCat("role ", Quoted(name), " is none of system, user, ",
                                             "assistant, tool, or not an object"));
    }
    KeyReader role(value, absl::StrCat(kFile, ": ", name));
    roles_[name] = {role.String("prefix", ""), role.String("suffix", ""), role.Bool("trim", false)};
    if (!role.status().ok()) return role.status();
  }
  for (const char* name : {"user", "assistant", "system"}) {
    const bool needed = *name != 's' || default_system_.has_value();
    if (needed && roles_.count(name) == 0) {
      return InvalidFile(kFile, absl::StrCat("roles has no ", name));
    }
  }
  const Json* tools = keys.Find("tools");
  const Json* thinking = keys.Find("thinking");
  absl::Status status;
  if (tools != nullptr) status.Update(ReadTools(*tools));
  if (thinking != nullptr) status.Update(ReadThinking(*thinking));
  return status;
}

absl::Status ChatFormat::ReadThinking(const Json& json) {
  if (!json.is_object()) return InvalidFile(kFile, "thinking must be an object");
  KeyReader keys(json, absl::StrCat(kFile, ": thinking"));
  ThinkingFormat& out = thinking_.emplace();
  out = {keys.String("prefix", ""), keys.String("suffix", ""), keys.String("skip", ""),
         keys.String("response_start", ""), keys.String("response_end", "")};
  out.kept = keys.Bool("kept", true);
  out.strip = keys.Bool("strip", false);
  out.start = Stripped(out.prefix);
  out.end = Stripped(out.suffix);
  const bool tags = out.start.starts_with('<') && out.end.starts_with('<');
  if (!tags) keys.Invalid("prefix", "must be a tag, as suffix");
  opens_thought_ = Stripped(generation_prompt_).ends_with(out.start);
  return keys.status();
}

absl::Status ChatFormat::ReadTools(const Json& json) {
  if (!json.is_object() || roles_.count("system") == 0 || roles_.count("tool") == 0) {
    return InvalidFile(kFile, "tools must be an object, beside the roles system and tool");
  }
  KeyReader keys(json, absl::StrCat(kFile, ": tools"));
  ToolFormat& out = tools_.emplace();
  const std::pair<const char*, std::string*> texts[] = {{"prefix", &out.prefix},
                                                        {"prefix_alone", &out.prefix_alone},
                                                        {"tool", &out.tool},
                                                        {"suffix", &out.suffix},
                                                        {"separator", &out.separator},
                                                        {"call", &out.call},
                                                        {"arguments", &out.arguments},
                                                        {"call_end", &out.call_end},
                                                        {"next_response", &out.next_response}};
  for (const auto& [name, text] : texts) *text = keys.String(name, "");
  out.trigger = out.call.substr(0, out.call.find_first_of("\n {"));
  if (out.trigger.empty()) keys.Invalid("call", "must begin with a tag");
  if (!out.arguments.starts_with('"')) keys.Invalid("arguments", "must begin with a quote");
  return keys.status();
}

void ChatFormat::FindAddedTokens(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.info().vocab_size; ++id) {
    if (!tokenizer.IsAdded(id)) continue;
    const std::string token = tokenizer.TokenBytes(id, /*skip_special=*/false);
    if (token.empty() || token.size() > AddedTokenSplitter::kMaxContent) continue;
    added_.Add({.content = token, .id = id});
  }
  const std::string& suffix = roles_["assistant"].suffix;
  added_.Split(suffix, [this](const TextPart& part) {
    if (part.id != TextPart::kText && !stop_id_.has_value()) stop_id_ = part.id;
  });
  if (stop_id_.has_value()) return;
  stop_text_ = Stripped(suffix);
  if (stop_text_.empty()) stop_text_ = Stripped(roles_["user"].prefix);
}

absl::Status ChatFormat::Check(absl::Span<const ChatMessage> messages, bool add_generation_prompt,
                               bool continue_final_message) const {
  if (messages.empty()) return absl::InvalidArgumentError("messages: there is none");
  if (messages.size() > kMaxMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: ", messages.size(), " of them, at most ", kMaxMessages));
  }
  size_t bytes = 0;
  const std::string* previous = nullptr;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& name = messages[i].role;
    const auto role = roles_.find(name);
    if (role == roles_.end()) {
      const auto add_name = [](std::string* out, const auto& r) { out->append(r.first); };
      return BadMessage(i, absl::StrCat(".role: ", Quoted(name), "; this model has ",
                                        absl::StrJoin(roles_, ", ", add_name)));
    }
    bytes += role->second.prefix.size() + messages[i].content.size() + role->second.suffix.size();
    if (!messages[i].calls.empty() && (!tools_.has_value() || name != "assistant")) {
      return BadMessage(i, ".tool_calls: of an assistant alone, and of a model that has tools");
    }
    for (const ToolCall& call : messages[i].calls) {
      const std::string text = call.name + call.arguments;
      bytes += text.size() + tools_->call.size() + tools_->arguments.size();
      if (!IsValidUtf8(text)) return BadMessage(i, ".tool_calls: not valid UTF-8");
    }
    if (bytes > kMaxTextBytes) {
      return BadMessage(
          i, absl::StrCat(": the conversation up to here has more than ", kMaxTextBytes, " bytes"));
    }
    if (!IsValidUtf8(messages[i].content)) return BadMessage(i, ".content: not valid UTF-8");
    if (name == "system") {
      if (i == 0 || later_system_) continue;
      return BadMessage(i, ".role: this model's template has a system message first only");
    }
    const bool user_next = previous == nullptr || *previous == "assistant";
    if (alternate_ && user_next != (name == "user")) {
      return BadMessage(i, ".role: user and assistant must take turns, user first");
    }
    previous = &name;
  }
  if (previous == nullptr && !system_alone_) {
    return BadMessage(0, ".role: with this model's template, a user's message must follow");
  }
  if (!continue_final_message) return absl::OkStatus();
  if (add_generation_prompt) {
    return absl::InvalidArgumentError(
        "continue_final_message and add_generation_prompt exclude each other");
  }
  if (messages.back().role == "assistant") return absl::OkStatus();
  return BadMessage(messages.size() - 1, ".role: continue_final_message needs the assistant's");
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Encode(
    const Tokenizer& tokenizer, absl::Span<const ChatMessage> messages, bool add_generation_prompt,
    bool continue_final_message, absl::Span<const std::string> tools,
    std::optional<bool> enable_thinking, std::time_t now) const {
  const absl::Status status = Check(messages, add_generation_prompt, continue_final_message);
  if (!status.ok()) return status;
  if (enable_thinking.has_value() && (!thinking_.has_value() || thinking_->skip.empty())) {
    return absl::FailedPreconditionError("enable_thinking: the model's chat format has no switch");
  }
  MarkedText text(tokenizer, added_, now);
  text.Mark(bos_);
  FOX_CHECK(tools.empty() || tools_.has_value());
  const auto list_tools = [&](const std::string& prefix) {
    text.Mark(prefix);
    for (const std::string& tool : tools) {
      text.Mark(tools_->tool);
      text.Content(tool);
    }
    text.Mark(tools_->suffix);
  };
  if (messages[0].role != "system" && (default_system_.has_value() || !tools.empty())) {
    const Role& system = roles_.at("system");
    text.Mark(system.prefix);
    tools.empty() ? text.Mark(*default_system_) : list_tools(tools_->prefix_alone);
    text.Mark(system.suffix);
  }
  // True if message `i` is a tool's answer, and so is the message before it.
  const auto joins = [&](size_t i) {
    return tools_.has_value() && i > 0 && i < messages.size() && messages[i].role == "tool" &&
           messages[i - 1].role == "tool";
  };
  const size_t question = thinking_.has_value() ? LastQuestion(messages, *thinking_) : 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const Role& role = roles_.at(message.role);
    text.Mark(joins(i) ? tools_->next_response : role.prefix);
    std::string_view thought, content = message.content;
    const bool thinks = thinking_.has_value() && message.role == "assistant";
    const bool kept = !thinking_.has_value() || thinking_->kept;
    if (thinks && kept) std::tie(thought, content) = SplitThought(content, *thinking_);
    if (thinks && !kept) content = WithoutThought(content, *thinking_);
    if (thinks && kept && i > question && (!thought.empty() || i + 1 == messages.size())) {
      text.Mark(thinking_->prefix);
      text.Content(thought);
      text.Mark(thinking_->suffix);
      text.Content(WithoutFirstNewlines(content));
    } else {
      text.Content(role.trim ? Stripped(content) : content);
    }
    if (i == 0 && message.role == "system" && !tools.empty()) list_tools(tools_->prefix);
    for (const ToolCall& call : message.calls) {
      const bool begins =
          (kept ? content : message.content).empty() && &call == &message.calls.front();
      text.Mark(begins ? tools_->call : tools_->separator + tools_->call);
      text.Content(call.name);
      text.Mark(tools_->arguments);
      text.Content(call.arguments);
      text.Mark(tools_->call_end);
    }
    const bool open = continue_final_message && i + 1 == messages.size();
    if (!open && !joins(i + 1)) text.Mark(role.suffix);
  }
  if (!continue_final_message) text.Mark(add_generation_prompt ? generation_prompt_ : end_);
  if (add_generation_prompt && !enable_thinking.value_or(true)) {
    FOX_CHECK(thinking_.has_value());
    text.Mark(thinking_->skip);
  }
  return text.Finish();
}

}  // namespace fox
