// Messages and tools: see chat_messages.h.
#include "server/http/openai/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/grammar/json_schema.h"

namespace fox {
namespace {

absl::Status Malformed(absl::string_view message) { return absl::InvalidArgumentError(message); }

// A text, or parts of text, which become its lines. Null where `optional`: no text.
absl::Status ReadContent(const ExactJson* value, bool optional, std::string* out) {
  constexpr const char* kForm =
      "content: must be a text or a list of {\"type\": \"text\", \"text\"}";
  if (value == nullptr && optional) return absl::OkStatus();
  if (value != nullptr && value->is_string()) {
    *out = value->get<std::string>();
    return absl::OkStatus();
  }
  if (value == nullptr || !value->is_array()) return Malformed(kForm);
  std::vector<std::string> lines;
  for (const ExactJson& part : *value) {
    if (!part.is_object()) return Malformed(kForm);
    JsonFields fields(part);
    const std::string type = fields.String("type").value_or("");
    if (type != "text" && type != "refusal" && !type.empty()) {
      return Malformed(absl::StrCat("content: no part of type ",
                                    absl::CHexEscape(type.substr(0, 32)),
                                    "; text alone is supported"));
    }
    std::optional<std::string> text = fields.String(type == "refusal" ? "refusal" : "text");
    if (type.empty() || !text.has_value()) return Malformed(kForm);
    const absl::Status unread = CheckUnreadFields(fields, FieldPlace::kPart);
    if (!unread.ok()) return Malformed(absl::StrCat("content.", unread.message()));
    lines.push_back(*std::move(text));
  }
  *out = absl::StrJoin(lines, "\n");
  return absl::OkStatus();
}

absl::Status ReadCalls(const ExactJson& calls, v1::ChatMessage* out, TurnNotes* notes) {
  if (!calls.is_array()) return Malformed("tool_calls: must be a list");
  for (const ExactJson& call : calls) {
    const ExactJson function = call.is_object() ? call.value("function", ExactJson()) : ExactJson();
    const ExactJson name = function.is_object() ? function.value("name", ExactJson()) : ExactJson();
    const ExactJson arguments =
        function.is_object() ? function.value("arguments", ExactJson()) : ExactJson();
    const bool is_text = arguments.is_string() || arguments.is_null();
    if (!name.is_string() || name == "" || !(is_text || arguments.is_object())) {
      return Malformed(
          "tool_calls: each must have a function.name, and function.arguments that are a text");
    }
    const ExactJson id = call.value("id", ExactJson());
    notes->calls.push_back(id.is_string() ? id.get<std::string>() : "");
    v1::ToolCall* const added = out->add_tool_calls();
    added->set_name(name.get<std::string>());
    added->set_arguments(arguments.is_object() ? TextOf(arguments, /*spaced=*/true)
                         : arguments.is_null() ? "{}"
                                               : SpacedArguments(arguments.get<std::string>()));
  }
  return absl::OkStatus();
}

// A thought that came apart from its answer, by either of its names.
std::string ThoughtOf(JsonFields* fields) {
  std::string thought = fields->String("reasoning_content").value_or("");
  const std::string newer = fields->String("reasoning").value_or("");
  return thought.empty() ? newer : thought;
}

absl::Status ReadMessage(const ExactJson& message, v1::ChatMessage* out, TurnNotes* notes) {
  if (!message.is_object()) return Malformed("role: must be set");
  JsonFields fields(message);
  const std::string role = fields.String("role").value_or("");
  const bool assistant = role == "assistant";
  const ExactJson* content = fields.Find("content");
  const ExactJson* calls = fields.Find("tool_calls");
  const ExactJson* refusal = assistant ? fields.Find("refusal") : nullptr;
  if (assistant) notes->thought = ThoughtOf(&fields);
  if (role == "tool") notes->answered = fields.String("tool_call_id").value_or("");
  absl::Status status = fields.status();
  if (status.ok()) status = CheckUnreadFields(fields, FieldPlace::kMessage);
  if (status.ok() && role.empty()) return Malformed("role: must be set");
  if (status.ok() && calls != nullptr) status = ReadCalls(*calls, out, notes);
  if (status.ok()) {
    status = ReadContent(content == nullptr ? refusal : content, assistant || role == "tool",
                         out->mutable_content());
  }
  out->set_role(role == "developer" ? "system" : role);  // OpenAI's newer name
  return status;
}

// Thoughts stand in the answers behind the last question; templates drop those before it.
void SetThoughts(const std::vector<TurnNotes>& notes, const ChatFormat& format,
                 v1::ChatMessages* out) {
  if (!format.thinking().has_value()) return;
  const ThinkingFormat& thinking = *format.thinking();
  for (size_t i = notes.size(); i-- > 0;) {
    v1::ChatMessage& turn = *out->mutable_turns(static_cast<int>(i));
    if (thinking.IsQuestion(turn.role(), turn.content())) return;
    if (notes[i].thought.empty()) continue;
    turn.set_content(
        absl::StrCat(thinking.prefix, notes[i].thought, thinking.suffix, turn.content()));
  }
}

// Templates have no ids: a model takes the first answer for that to the first call. Tools that run
// side by side end in any order, so the answers behind an assistant's turn come in the order of its
// calls, if their ids say so without a doubt.
void SortAnswers(const std::vector<TurnNotes>& notes, v1::ChatMessages* out) {
  const int count = out->turns_size();
  for (int begin = 1, end = 1; begin < count; begin = end + 1) {
    for (end = begin; end < count && out->turns(end).role() == "tool"; ++end) {
    }
    const std::vector<std::string>& calls = notes[static_cast<size_t>(begin) - 1].calls;
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < calls.size(); ++i) places.emplace(calls[i], i);
    std::map<size_t, v1::ChatMessage> answers;
    for (int i = begin; i < end; ++i) {
      const auto place = places.find(notes[static_cast<size_t>(i)].answered);
      if (place != places.end()) answers.emplace(place->second, out->turns(i));
    }
    if (places.size() < calls.size() || answers.size() < static_cast<size_t>(end - begin)) continue;
    for (auto& [place, answer] : answers) *out->mutable_turns(begin++) = std::move(answer);
  }
}

void ReadTools(JsonFields* fields, v1::ChatMessages* out) {
  const ExactJson* tools = fields->Find("tools");
  const bool parallel = fields->Bool("parallel_tool_calls").value_or(true);
  if (tools != nullptr && !tools->is_array()) return fields->Fail("tools", "a list of functions");
  ToolChoice choice(fields, /*nested=*/true, out);
  if (choice.none() || tools == nullptr || tools->empty()) return;
  if (!parallel) out->set_one_call(true);
  for (const ExactJson& tool : *tools) {
    if (choice.Admits(tool)) out->add_tools(TextOf(tool, /*spaced=*/true));
  }
  choice.CheckNames(fields);
}

// The name of a function: beside its type, or in an object `function` below it.
std::optional<std::string> FunctionName(const ExactJson& value, bool nested) {
  if (!value.is_object() || !(nested || value.value("type", ExactJson()) == "function")) return {};
  const ExactJson inner = nested ? value.value("function", ExactJson()) : value;
  const ExactJson name = inner.is_object() ? inner.value("name", ExactJson()) : ExactJson();
  return name.is_string() ? std::optional(name.get<std::string>()) : std::nullopt;
}

}  // namespace

std::string SpacedArguments(const std::string& text) {
  if (text.empty()) return "{}";
  const JsonLimits limits = {text.size(), kMaxSchemaDepth, /*max_values=*/1 << 16};
  const absl::StatusOr<ExactJson> json = ReadExactJson(text, limits, "arguments");
  return json.ok() ? TextOf(*json, /*spaced=*/true) : text;
}

v1::ChatMessage& ChatTurns::Turn(const std::string& role) {
  v1::ChatMessage* last =
      out_.turns_size() > 0 ? out_.mutable_turns(out_.turns_size() - 1) : nullptr;
  if (last != nullptr && role != "tool" && last->role() == role) return *last;
  last = out_.add_turns();
  last->set_role(role);
  return *last;
}

void ChatTurns::AddLine(const std::string& role, const std::string& line) {
  const int turns = out_.turns_size();
  const bool first = turns == 0 || (turns == 1 && out_.turns(0).role() == "system");
  const bool has_place = first || role != "system" || format_.later_system();
  JoinLine(line, Turn(has_place ? role : "user").mutable_content());
}

TurnNotes& ChatTurns::Notes() {
  notes_.resize(static_cast<size_t>(out_.turns_size()));
  return notes_.back();
}

void ChatTurns::AddThought(const std::string& line) {
  Turn("assistant");
  JoinLine(line, &Notes().thought);
}

void ChatTurns::AddCall(const std::string& id, const std::string& name,
                        const std::string& arguments) {
  v1::ToolCall* const call = Turn("assistant").add_tool_calls();
  call->set_name(name);
  call->set_arguments(arguments);
  Notes().calls.push_back(id);
}

std::string* ChatTurns::AddAnswer(const std::string& id) {
  v1::ChatMessage& turn = Turn("tool");
  Notes().answered = id;
  return turn.mutable_content();
}

void ChatTurns::Finish() {
  notes_.resize(static_cast<size_t>(out_.turns_size()));
  SortAnswers(notes_, &out_);
  SetThoughts(notes_, format_, &out_);
}

ToolChoice::ToolChoice(JsonFields* fields, bool nested, v1::ChatMessages* out) : nested_(nested) {
  const ExactJson* choice = fields->Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  ExactJson wanted = *choice;
  if (wanted.is_object() && wanted.value("type", ExactJson()) == "allowed_tools") {
    const ExactJson limits = nested ? wanted.value("allowed_tools", ExactJson()) : wanted;
    const ExactJson tools = limits.is_object() ? limits.value("tools", ExactJson()) : ExactJson();
    wanted = tools.is_array() ? limits.value("mode", ExactJson()) : ExactJson();
    allowed_.emplace();
    for (const ExactJson& tool : tools) {
      if (const auto name = FunctionName(tool, nested)) allowed_->emplace(*name, false);
    }
    if (wanted == "auto") return;
  }
  none_ = wanted == "none" && !allowed_.has_value();
  if (none_) return;
  if (wanted == "required") {
    out->set_call_required(true);
  } else if (const auto name = FunctionName(wanted, nested)) {
    out->set_call_name(*name);
  } else {
    fields->Fail("tool_choice",
                 absl::StrCat(R"("none", "auto", "required", {"type": "function", )",
                              nested ? R"("function": {"name": ..}} or {"type": "allowed_tools", )"
                                       R"("allowed_tools": {"mode": .., "tools": [..]}})"
                                     : R"("name": ..} or {"type": "allowed_tools", "mode": .., )"
                                       R"("tools": [..]})"));
  }
}

bool ToolChoice::Admits(const ExactJson& tool) {
  if (!allowed_.has_value()) return true;
  const auto found = allowed_->find(FunctionName(tool, nested_).value_or(""));
  if (found == allowed_->end()) return false;
  return found->second = true;
}

void ToolChoice::CheckNames(JsonFields* fields) const {
  if (!allowed_.has_value()) return;
  for (const auto& [name, found] : *allowed_) {
    if (!found) return fields->Fail("tool_choice", "a choice of functions in tools");
  }
}

void JoinLine(const std::string& line, std::string* text) {
  absl::StrAppend(text, text->empty() ? "" : "\n", line);
}

void ReadEffort(const char* name, JsonFields* fields, const ChatFormat& format,
                v1::ChatMessages* out) {
  const std::optional<std::string> effort = fields->String(name);
  if (!effort.has_value()) return;
  constexpr absl::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                            "high", "xhigh",   "max"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
    return fields->Fail(name, "none, minimal, low, medium, high, xhigh or max");
  }
  const bool wanted = *effort != "none";
  if (out->has_enable_thinking() && out->enable_thinking() != wanted) {
    return fields->Fail(name, "as chat_template_kwargs, or absent");
  }
  if (!format.thinking().has_value()) {
    if (wanted) fields->Fail(name, "none or absent: the model has no thoughts");
  } else if (!wanted && format.thinking()->skip.empty()) {
    fields->Fail(name, "other than none: the model always thinks");
  } else if (!wanted) {
    out->set_enable_thinking(false);
  }
}

void ReadTurn(JsonFields* fields, const ChatFormat& format, v1::ChatMessages* out) {
  if (const auto v = fields->Bool("add_generation_prompt")) out->set_add_generation_prompt(*v);
  if (const auto v = fields->Bool("continue_final_message")) out->set_continue_final_message(*v);
  ReadTools(fields, out);
  const ExactJson* arguments = fields->Find("chat_template_kwargs");
  if (arguments != nullptr && !arguments->empty()) {
    const bool wanted = *arguments == ExactJson::object({{"enable_thinking", true}});
    if (!wanted && *arguments != ExactJson::object({{"enable_thinking", false}})) {
      fields->Fail("chat_template_kwargs", R"({"enable_thinking": true or false})");
    }
    // A model without thoughts has them off.
    if (wanted || format.thinking().has_value()) out->set_enable_thinking(wanted);
  }
  ReadEffort("reasoning_effort", fields, format, out);
}

absl::Status ReadMessages(const ExactJson* value, const ChatFormat& format, v1::ChatMessages* out) {
  if (value == nullptr) return Malformed("messages: must be set");
  if (!value->is_array()) return Malformed("messages: must be a list of {\"role\", \"content\"}");
  std::vector<TurnNotes> notes(value->size());
  for (size_t i = 0; i < value->size(); ++i) {
    const absl::Status status = ReadMessage((*value)[i], out->add_turns(), &notes[i]);
    if (!status.ok()) return Malformed(absl::StrCat("messages[", i, "].", status.message()));
  }
  SortAnswers(notes, out);
  SetThoughts(notes, format, out);
  return absl::OkStatus();
}

}  // namespace fox
