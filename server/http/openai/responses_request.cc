// Items, tools and other fields of the Responses API. See responses_request.h.
#include "server/http/openai/responses_request.h"

#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/http/openai/chat_messages.h"

namespace fox {
namespace {

// A text, or parts of text, which become its lines. In a tool's `answer` other parts may stand,
// too.
absl::Status ReadParts(const ExactJson& value, bool answer, std::string* out) {
  if (value.is_string()) {
    *out = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return absl::InvalidArgumentError(": must be a text or a list of parts");
  for (size_t i = 0; i < value.size(); ++i) {
    JsonFields part = FieldsOf(value[i]);
    const std::string type = part.String("type").value_or("");
    if (answer && (type == "input_image" || type == "input_file")) {
      JoinLine(kUnseenPart, out);
      continue;
    }
    const bool refusal = type == "refusal";
    const bool known = refusal || type == "input_text" || type == "output_text" ||
                       type == "reasoning_text" || type == "text";
    const std::string text = part.String(refusal ? "refusal" : "text").value_or("");
    const absl::Status status = known ? CheckFields(part, FieldPlace::kResponsesPart)
                                      : UnknownType(type, "input_text or output_text");
    if (!status.ok()) return Below(absl::StrCat("[", i, "]"), status);
    JoinLine(text, out);
  }
  return absl::OkStatus();
}

// A field of ReadParts' form; absent where `optional`.
absl::Status ReadPartsOf(JsonFields* item, const char* name, bool optional, bool answer,
                         std::string* out) {
  const ExactJson* value = item->Find(name);
  if (value == nullptr && !optional && item->status().ok()) item->Fail(name, "set");
  if (value == nullptr) return absl::OkStatus();
  return Below(absl::StrCat(".", name), ReadParts(*value, answer, out));
}

// The thought of an item of reasoning, in the open or sealed by this server; "": another server's.
absl::Status ReadThought(JsonFields* item, std::string* out) {
  item->Find("summary");
  const std::string encrypted = item->String("encrypted_content").value_or("");
  absl::string_view sealed = encrypted;
  absl::Status status = ReadPartsOf(item, "content", /*optional=*/true, /*answer=*/false, out);
  if (!status.ok() || !out->empty() || !absl::ConsumePrefix(&sealed, kThoughtSeal)) return status;
  if (!absl::Base64Unescape(sealed, out)) item->Fail("encrypted_content", "as this server gave it");
  return absl::OkStatus();
}

// The name that the model sees of a function in a namespace, as Codex sends the tools of an MCP
// server; "": of one in none.
std::string SeenName(absl::string_view space, const std::string& name) {
  absl::ConsumeSuffix(&space, "__");
  return space.empty() ? name : absl::StrCat(space, "__", name);
}

absl::Status ReadItem(const ExactJson& value, ChatTurns* turns) {
  JsonFields item = FieldsOf(value);
  const std::string role = item.String("role").value_or("");
  const std::string type = item.String("type").value_or(role.empty() ? "" : "message");
  std::string text;
  absl::Status status;
  if (type == "message") {
    status =
        ReadPartsOf(&item, "content", /*optional=*/role == "assistant", /*answer=*/false, &text);
    const bool system = role == "system" || role == "developer";
    if (!system && role != "user" && role != "assistant" && item.status().ok()) {
      item.Fail("role", "user, assistant, system or developer");
    }
    if (status.ok() && item.status().ok()) turns->AddLine(system ? "system" : role, text);
  } else if (type == "reasoning") {
    status = ReadThought(&item, &text);
    if (status.ok() && !text.empty()) turns->AddThought(text);
  } else if (type == "function_call") {
    const std::string name = item.String("name").value_or("");
    const std::string arguments = item.String("arguments").value_or("");
    if (name.empty() && item.status().ok()) item.Fail("name", "set");
    turns->AddCall(item.String("call_id").value_or(""),
                   SeenName(item.String("namespace").value_or(""), name),
                   SpacedArguments(arguments));
  } else if (type == "function_call_output") {
    status = ReadPartsOf(&item, "output", /*optional=*/false, /*answer=*/true, &text);
    *turns->AddAnswer(item.String("call_id").value_or("")) = text;
  } else if (type == "item_reference") {
    return absl::InvalidArgumentError(".type: nothing is stored; send the item itself");
  } else {
    status = UnknownType(type, "message, reasoning, function_call or function_call_output");
  }
  return status.ok() ? CheckFields(item, FieldPlace::kResponsesItem) : status;
}

absl::Status ReadInput(const ExactJson* instructions, const ExactJson* input,
                       const ChatFormat& format, v1::ChatMessages* out) {
  if (input == nullptr || !(input->is_string() || input->is_array())) {
    return absl::InvalidArgumentError("input: must be a text or a list of items");
  }
  ChatTurns turns(format, out);
  if (instructions != nullptr) turns.AddLine("system", instructions->get<std::string>());
  if (input->is_string()) turns.AddLine("user", input->get<std::string>());
  for (size_t i = 0; input->is_array() && i < input->size(); ++i) {
    const absl::Status status = ReadItem((*input)[i], &turns);
    if (!status.ok()) return Below(absl::StrCat("input[", i, "]"), status);
  }
  turns.Finish();
  return absl::OkStatus();
}

// Tools of other types belong to OpenAI's servers or to one client: the model does not see them, as
// the choice of a tool is its own. `space`: the namespace of these tools; "": none.
absl::Status ReadFunctions(const ExactJson& tools, const std::string& space, ToolChoice* choice,
                           CompletionRequest* out) {
  for (size_t i = 0; i < tools.size(); ++i) {
    JsonFields tool = FieldsOf(tools[i]);
    const std::string place = absl::StrCat("tools[", i, "]");
    const std::optional<std::string> type = tool.String("type");
    if (!type.has_value()) return absl::InvalidArgumentError(place + ".type: must be set");
    const std::string name = tool.String("name").value_or("");
    const ExactJson* inner = *type == "namespace" && space.empty() ? tool.Find("tools") : nullptr;
    if (inner != nullptr && inner->is_array() && !name.empty()) {
      const absl::Status status = ReadFunctions(*inner, name, choice, out);
      if (!status.ok()) return Below(place + ".", status);
    }
    if (*type != "function" || !choice->Admits(tools[i])) continue;
    ExactJson function = ExactJson::object();
    for (const char* field : {"name", "description", "parameters", "strict"}) {
      if (const ExactJson* found = tool.Find(field)) function[field] = *found;
    }
    if (!space.empty()) {
      const std::string seen = SeenName(space, name);
      function["name"] = seen;
      out->namespaced[seen] = {space, name};
    }
    const absl::Status status = CheckFields(tool, FieldPlace::kResponsesTool);
    if (!status.ok()) return Below(place, status);
    out->prompts[0].mutable_messages()->add_tools(
        TextOf(ExactJson({{"type", "function"}, {"function", function}}), true));
  }
  return absl::OkStatus();
}

absl::Status ReadFunctionsAndChoice(JsonFields* body, CompletionRequest* out) {
  v1::ChatMessages* const chat = out->prompts[0].mutable_messages();
  const ExactJson* tools = body->Find("tools");
  if (!body->Bool("parallel_tool_calls").value_or(true)) chat->set_one_call(true);
  if (tools != nullptr && !tools->is_array()) body->Fail("tools", "a list of tools");
  ToolChoice choice(body, /*nested=*/false, chat);
  if (!body->status().ok() || choice.none() || tools == nullptr) return absl::OkStatus();
  absl::Status status = ReadFunctions(*tools, "", &choice, out);
  choice.CheckNames(body);
  return status;
}

void ReadTextFormat(JsonFields* body, v1::Sampling* out) {
  JsonFields text = body->Object("text");
  JsonFields format = text.Object("format");
  const std::string type = format.String("type").value_or("text");
  if (type == "json_schema") {
    const ExactJson* schema = format.Find("schema");
    if (schema != nullptr && schema->is_object()) {
      out->set_json_schema(TextOf(*schema, /*spaced=*/false));
    } else {
      format.Fail("schema", "an object");
    }
  } else if (type == "json_object") {
    out->set_json_object(true);
  } else if (type != "text") {
    format.Fail("type", "text, json_object or json_schema");
  }
  if (text.String("verbosity").value_or("medium") != "medium") {
    text.Fail("verbosity", "medium, or absent: the model has no such switch");
  }
  text.FailWithin("format", format.status());
  text.FailWithin("format", CheckUnreadFields(format, FieldPlace::kSchema));
  body->FailWithin("text", text.status());
  body->FailWithin("text", CheckUnreadFields(text, FieldPlace::kFormat));
}

void ReadReasoning(JsonFields* body, const ChatFormat& format, CompletionRequest* out) {
  JsonFields reasoning = body->Object("reasoning");
  ReadEffort("effort", &reasoning, format, out->prompts[0].mutable_messages());
  body->FailWithin("reasoning", reasoning.status());
  body->FailWithin("reasoning", CheckUnreadFields(reasoning, FieldPlace::kResponsesReasoning));
  for (const std::string& part : body->Strings("include", 16)) {
    if (part == "reasoning.encrypted_content") out->seals_thoughts = true;
    if (part == "message.output_text.logprobs") {
      body->Fail("include", "without logprobs; /v1/chat/completions has them");
    }
  }
}

// Sets the fields that a function of `tools` has in an answer, as the request may lack them.
void CompleteFunctions(ExactJson* tools) {
  for (ExactJson& tool : *tools) {
    if (tool.contains("tools")) CompleteFunctions(&tool["tools"]);  // of a namespace
    if (!tool.is_object() || tool.value("type", ExactJson()) != "function") continue;
    for (const char* field : {"parameters", "strict"}) tool.emplace(field, nullptr);
  }
}

// The fields of a request that its answer repeats, with the API's defaults.
std::string EchoedFields(const ExactJson& body) {
  static constexpr std::pair<const char*, const char*> kFields[] = {
      {"instructions", "null"},
      {"max_output_tokens", "null"},
      {"metadata", "{}"},
      {"reasoning", "null"},
      {"parallel_tool_calls", "true"},
      {"temperature", "null"},
      {"text", R"({"format":{"type":"text"}})"},
      {"tool_choice", R"("auto")"},
      {"tools", "[]"},
      {"top_p", "null"}};
  std::string out;
  for (const auto& [name, fallback] : kFields) {
    const auto found = body.find(name);
    ExactJson value = found == body.end() || found->is_null() ? ExactJson::parse(fallback) : *found;
    if (absl::string_view(name) == "tools") CompleteFunctions(&value);
    absl::StrAppend(&out, "\"", name, "\":", TextOf(value, false), ",");
  }
  return out + R"("background":false,"previous_response_id":null,"store":false,)"
               R"("truncation":"disabled")";
}

}  // namespace

absl::StatusOr<CompletionRequest> ParseResponses(const std::string& body,
                                                 const ConversionContext& context) {
  CompletionRequest request;
  absl::StatusOr<JsonFields> fields = BeginChat(body, context, &request);
  if (!fields.ok()) return fields.status();
  v1::ChatMessages& chat = *request.prompts[0].mutable_messages();
  if (const auto most = fields->Int("max_output_tokens", 1, INT32_MAX)) {
    request.settings.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(*most));
    request.max_tokens_sent = true;
    request.max_tokens_field = "max_output_tokens";
  }
  if (fields->String("truncation").value_or("disabled") != "disabled") {
    fields->Fail("truncation", "disabled, or absent; a client drops items itself");
  }
  absl::Status status = ReadFunctionsAndChoice(&*fields, &request);
  ReadTextFormat(&*fields, request.settings.mutable_sampling());
  ReadReasoning(&*fields, *context.chat, &request);
  const std::optional<std::string> instructions = fields->String("instructions");
  const ExactJson* system = instructions.has_value() ? fields->Find("instructions") : nullptr;
  const ExactJson* input = fields->Find("input");
  status.Update(fields->status());
  status.Update(CheckUnreadFields(*fields, FieldPlace::kResponsesBody));
  status.Update(status.ok() ? ReadInput(system, input, *context.chat, &chat) : status);
  if (!status.ok()) return status;
  request.echoed = EchoedFields(fields->object());
  return request;
}

}  // namespace fox
