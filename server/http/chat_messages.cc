// Messages and tools: see chat_messages.h.
#include "server/http/chat_messages.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/grammar/json_schema_check.h"
#include "models/json_reader.h"

namespace fox {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

// With the spaces of Python's json.dumps: models know it from templates.
std::string Spaced(const Ordered& value) {
  std::string out;
  JsonQuotes quotes;
  for (const char c : value.dump()) {
    out += c;
    if (!quotes.open() && (c == ',' || c == ':')) out += ' ';
    quotes.Read(c);
  }
  return out;
}

// A text, or parts of text, which become its lines.
absl::Status ReadContent(const Json* value, std::string* out) {
  constexpr const char* kForm =
      "content: must be a text or a list of {\"type\": \"text\", \"text\"}";
  if (value != nullptr && value->is_string()) {
    *out = value->get<std::string>();
    return absl::OkStatus();
  }
  if (value == nullptr || !value->is_array()) return absl::InvalidArgumentError(kForm);
  std::vector<std::string> lines;
  for (const Json& part : *value) {
    if (!part.is_object()) return absl::InvalidArgumentError(kForm);
    JsonFields fields(part);
    const std::string type = fields.String("type").value_or("");
    if (type != "text" && !type.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("content: no part of type ",
                                                     absl::CHexEscape(type.substr(0, 32)),
                                                     "; text alone is supported"));
    }
    std::optional<std::string> text = fields.String("text");
    if (type.empty() || !text.has_value()) return absl::InvalidArgumentError(kForm);
    lines.push_back(*std::move(text));
  }
  *out = absl::StrJoin(lines, "\n");
  return absl::OkStatus();
}

absl::Status ReadCalls(const Json& calls, v1::ChatMessage* out) {
  const auto text = [](const Json& call, const char* pointer) {
    const Json::json_pointer at(pointer);
    const bool is_text = call.is_object() && call.contains(at) && call.at(at).is_string();
    return is_text ? call.at(at).get<std::string>() : "";
  };
  if (!calls.is_array()) return absl::InvalidArgumentError("tool_calls: must be a list");
  for (const Json& call : calls) {
    const std::string name = text(call, "/function/name"), sent = text(call, "/function/arguments");
    const std::string arguments = sent.empty() ? "{}" : sent;
    const JsonLimits limits = {arguments.size(), kMaxSchemaDepth, /*max_values=*/1 << 16};
    if (name.empty() || !ReadJsonObject(arguments, limits, "arguments").ok()) {
      return absl::InvalidArgumentError(
          "tool_calls: each must have a function.name, and function.arguments that are "
          "the text of a JSON object");
    }
    v1::ToolCall* const added = out->add_tool_calls();
    added->set_name(name);
    added->set_arguments(Spaced(Ordered::parse(arguments)));
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const Json& message, v1::ChatMessage* out) {
  if (!message.is_object()) return absl::InvalidArgumentError("role: must be set");
  JsonFields fields(message);
  const std::string role = fields.String("role").value_or("");
  const Json* content = fields.Find("content");
  const Json* calls = fields.Find("tool_calls");
  fields.Find("tool_call_id");  // answers come in the order of the calls
  absl::Status status = fields.status();
  if (status.ok()) status = CheckUnreadFields(fields);
  if (status.ok() && role.empty()) return absl::InvalidArgumentError("role: must be set");
  if (status.ok() && calls != nullptr) status = ReadCalls(*calls, out);
  if (status.ok() && (content != nullptr || out->tool_calls().empty())) {
    status = ReadContent(content, out->mutable_content());
  }
  out->set_role(role == "developer" ? "system" : role);  // OpenAI's newer name
  return status;
}

}  // namespace

absl::Status ReadMessages(const Json* value, v1::ChatMessages* out) {
  if (value == nullptr) return absl::InvalidArgumentError("messages: must be set");
  if (!value->is_array())
    return absl::InvalidArgumentError("messages: must be a list of {\"role\", \"content\"}");
  for (const Json& message : *value) {
    const int place = out->turns_size();
    const absl::Status status = ReadMessage(message, out->add_turns());
    if (!status.ok())
      return absl::InvalidArgumentError(absl::StrCat("messages[", place, "].", status.message()));
  }
  return absl::OkStatus();
}

void ReadTools(JsonFields* fields, const std::string& body, v1::ChatMessages* out) {
  const Json* tools = fields->Find("tools");
  const Json* choice = fields->Find("tool_choice");
  const bool parallel = fields->Bool("parallel_tool_calls").value_or(true);
  const Json::json_pointer name("/function/name");
  if (tools != nullptr && !tools->is_array()) return fields->Fail("tools", "a list of functions");
  if (choice != nullptr && *choice == "none") return;
  if (choice != nullptr && *choice == "required") {
    out->set_call_required(true);
  } else if (choice != nullptr && choice->is_object() && choice->contains(name) &&
             choice->at(name).is_string()) {
    out->set_call_name(choice->at(name).get<std::string>());
  } else if (choice != nullptr && *choice != "auto") {
    return fields->Fail("tool_choice",
                        R"("none", "auto", "required" or {"type": "function", "function": )"
                        R"({"name": ..}})");
  }
  if (tools == nullptr || tools->empty()) return;
  if (!parallel) out->set_one_call(true);
  const Ordered all = Ordered::parse(body, nullptr, /*allow_exceptions=*/false);
  for (const Ordered& tool : all.at("tools")) out->add_tools(Spaced(tool));
}

}  // namespace fox
