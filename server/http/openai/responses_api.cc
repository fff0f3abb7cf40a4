// OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses), POST
// /v1/responses, without a store: each request has all items. Its body becomes the request of a
// chat, its answer a list of items.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/http/openai/answer_reader.h"
#include "server/http/openai/chat_messages.h"
#include "server/http/openai/completion_format.h"
#include "server/http/openai/openai_service.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

// Before a thought in base64: clients that send no other thoughts back, such as Codex, send this.
constexpr char kSeal[] = "fox1:";

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
  if (!status.ok() || !out->empty() || !absl::ConsumePrefix(&sealed, kSeal)) return status;
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

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(const CompletionRequest& request, const ConversionContext& context,
                  std::string id, int64_t created)
      : request_(request),
        context_(context),
        id_(std::move(id)),
        created_(created),
        answer_(request, context) {}

  bool keeps_text() const override { return true; }

  int64_t AddEvent(size_t, const v1::GenerateDelta& event) override {
    parts_ = answer_.Read(event);
    if (!request_.stream) {
      for (AnswerPart& part : parts_) AddPart(part);
    }
    return static_cast<int64_t>(event.delta().text().size());
  }

  std::string TakeChunk(size_t, const v1::GenerateDelta& event) override {
    if (event.has_prompt()) return "";
    std::string out;
    if (next_event_ == 0) {
      for (const char* type : {"response.created", "response.in_progress"}) {
        out += Event(type, absl::StrCat("\"response\":", Response("in_progress")));
      }
    }
    for (const AnswerPart& part : parts_) {
      const bool goes_on = Continues(part);
      if (!goes_on) out += CloseItem("completed");
      AddPart(part);
      if (!goes_on) out += OpenItem();
      if (!part.text.empty()) out += Told("delta", "delta", part.text);
    }
    if (!event.has_finish()) return out;
    out += CloseItem(LastStatus());
    const std::string status = Status();
    return out + Event(absl::StrCat("response.", status),
                       absl::StrCat("\"response\":", Response(status)));
  }

  std::string LastChunks() override { return ""; }
  std::string TakeBody() override { return Response(Status()); }
  std::string EncodeFailure(const absl::Status& status) const override {
    const char* code = absl::IsResourceExhausted(status) ? "rate_limit_exceeded" : "server_error";
    const std::string error =
        absl::StrCat(R"({"code":")", code, R"(","message":)", JsonString(status.message()), "}");
    return EventOf("response.failed", next_event_,
                   absl::StrCat("\"response\":", Response("failed", error)));
  }
  void DropContents() override {
    parts_.clear();
    items_.clear();
  }

 private:
  using Kind = AnswerPart::Kind;

  static std::string EventOf(const std::string& type, int64_t number, const std::string& rest) {
    return ServerSentEvent(
        absl::StrCat(R"({"type":")", type, R"(","sequence_number":)", number, ",", rest, "}"),
        type);
  }
  std::string Event(const std::string& type, const std::string& rest) {
    return EventOf(type, next_event_++, rest);
  }
  bool Continues(const AnswerPart& part) const {
    return !items_.empty() && items_.back().kind == part.kind && part.id.empty();
  }
  void AddPart(const AnswerPart& part) {
    Continues(part) ? void(items_.back().text += part.text) : items_.push_back(part);
  }

  std::string ItemId(size_t index) const {
    const Kind kind = items_[index].kind;
    const char* prefix = kind == Kind::kText ? "msg" : kind == Kind::kThought ? "rs" : "fc";
    return JsonString(absl::StrCat(prefix, id_.substr(id_.find('_')), "_", index));
  }
  // The content of an item that is not a call.
  static std::string Content(const AnswerPart& item) {
    if (item.kind == Kind::kThought) {
      return absl::StrCat(R"({"type":"reasoning_text","text":)", JsonString(item.text), "}");
    }
    return absl::StrCat(R"({"type":"output_text","text":)", JsonString(item.text),
                        R"(,"annotations":[],"logprobs":[]})");
  }
  // `begins`: without its text.
  std::string Item(size_t index, const char* status, bool begins = false) const {
    const AnswerPart& item = items_[index];
    const std::string head =
        absl::StrCat(R"({"id":)", ItemId(index), R"(,"status":")", status, R"(","type":)");
    if (item.kind == Kind::kCall) {
      const auto [space, name] = NameOf(item);
      return absl::StrCat(head, R"("function_call","call_id":")", item.id, R"(","name":)",
                          JsonString(name), space.empty() ? "" : R"(,"namespace":)",
                          space.empty() ? "" : JsonString(space), R"(,"arguments":)",
                          JsonString(begins ? "" : item.text), "}");
    }
    const std::string content = absl::StrCat(R"("content":[)", begins ? "" : Content(item), "]}");
    if (item.kind == Kind::kText) {
      return absl::StrCat(head, R"("message","role":"assistant",)", content);
    }
    const bool seals = request_.seals_thoughts && !begins;
    return absl::StrCat(
        head, R"("reasoning","summary":[],"encrypted_content":)",
        seals ? absl::StrCat("\"", kSeal, absl::Base64Escape(item.text), "\"") : "null", ",",
        content);
  }

  // The place of the last item in an event.
  std::string Place() const {
    const size_t last = items_.size() - 1;
    const bool call = items_.back().kind == Kind::kCall;
    return absl::StrCat(R"("item_id":)", ItemId(last), R"(,"output_index":)", last,
                        call ? "" : R"(,"content_index":0)");
  }
  std::string PlaceOfItem(const std::string& item) const {
    return absl::StrCat(R"("output_index":)", items_.size() - 1, R"(,"item":)", item);
  }
  // NameOf gives the namespace of a call's function, or "", and the function's name in it.
  std::pair<std::string, std::string> NameOf(const AnswerPart& call) const {
    const auto found = request_.namespaced.find(call.name);
    return found != request_.namespaced.end() ? found->second : std::pair(std::string(), call.name);
  }
  // An event with the text of the last item, or a part of it.
  std::string Told(const char* event, const char* field, const std::string& text) {
    const Kind kind = items_.back().kind;
    const char* what = kind == Kind::kText      ? "output_text"
                       : kind == Kind::kThought ? "reasoning_text"
                                                : "function_call_arguments";
    std::string rest = kind == Kind::kText ? R"(,"logprobs":[])" : "";
    if (kind == Kind::kCall && event == absl::string_view("done")) {
      rest = absl::StrCat(R"(,"name":)", JsonString(NameOf(items_.back()).second));
    }
    return Event(absl::StrCat("response.", what, ".", event),
                 absl::StrCat(Place(), ",\"", field, "\":", JsonString(text), rest));
  }
  std::string OpenItem() {
    const size_t last = items_.size() - 1;
    const AnswerPart empty = {.kind = items_.back().kind};
    std::string out =
        Event("response.output_item.added", PlaceOfItem(Item(last, "in_progress", true)));
    if (empty.kind == Kind::kCall) return out;
    return out + Event("response.content_part.added",
                       absl::StrCat(Place(), R"(,"part":)", Content(empty)));
  }
  std::string CloseItem(const char* status) {
    if (items_.empty()) return "";
    const AnswerPart& item = items_.back();
    const bool call = item.kind == Kind::kCall;
    std::string out = Told("done", call ? "arguments" : "text", item.text);
    if (!call) {
      out +=
          Event("response.content_part.done", absl::StrCat(Place(), R"(,"part":)", Content(item)));
    }
    return out + Event("response.output_item.done", PlaceOfItem(Item(items_.size() - 1, status)));
  }

  std::string Status() const {
    const v1::FinishReason reason = answer_.finish.reason();
    return reason == v1::LENGTH ? "incomplete" : reason == v1::ABORT ? "failed" : "completed";
  }
  const char* LastStatus() const { return Status() == "completed" ? "completed" : "incomplete"; }

  std::string Response(const std::string& status, std::string error = "null") const {
    const bool ended = status != "in_progress" && error == "null";
    std::string output;
    for (size_t i = 0; ended && i < items_.size(); ++i) {
      const bool last = i + 1 == items_.size();
      absl::StrAppend(&output, i > 0 ? "," : "", Item(i, last ? LastStatus() : "completed"));
    }
    if (ended && status == "failed") error = R"({"code":"server_error","message":"aborted"})";
    return absl::StrCat(
        R"({"id":)", JsonString(id_), R"(,"object":"response","created_at":)", created_,
        R"(,"status":")", status, R"(","error":)", error, R"(,"incomplete_details":)",
        status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null", R"(,"model":)",
        JsonString(context_.served_model_name), ",", request_.echoed, R"(,"output":[)", output,
        R"(],"usage":)", ended ? Usage() + answer_.Fox() : "null", "}");
  }
  std::string Usage() const {
    return absl::StrCat(R"({"input_tokens":)", answer_.prompt_tokens,
                        R"(,"input_tokens_details":{"cached_tokens":)", answer_.cached_tokens,
                        R"(,"cache_write_tokens":0},"output_tokens":)", answer_.tokens,
                        R"(,"output_tokens_details":{"reasoning_tokens":)", answer_.thought_tokens,
                        R"(},"total_tokens":)", answer_.prompt_tokens + answer_.tokens, "}");
  }

  const CompletionRequest& request_;
  const ConversionContext& context_;
  const std::string id_;
  const int64_t created_;
  ChatAnswer answer_;
  std::vector<AnswerPart> parts_;  // of the last event
  std::vector<AnswerPart> items_;
  int64_t next_event_ = 0;  // in a stream
};

absl::StatusOr<std::string> CountTokens(const std::string& body, const ConversionContext& context) {
  const auto request = ParseResponses(body, context);
  if (!request.ok()) return request.status();
  const auto ids = TokenizeMessages(request->prompts[0].messages(), context);
  if (!ids.ok()) return ids.status();
  return absl::StrCat(R"({"object":"response.input_tokens","input_tokens":)", ids->size(), "}");
}

}  // namespace

const HttpApi kResponsesApi = {
    .path = "/v1/responses",
    .id_prefix = "resp_",
    .parse = ParseResponses,
    .make_writer = [](const CompletionRequest& request, const ConversionContext& context,
                      const std::string&, const std::string& id,
                      int64_t created) -> std::unique_ptr<AnswerWriter> {
      return std::make_unique<ResponsesWriter>(request, context, id, created);
    },
    .error_body = ErrorBody,
    .keep_alive = ": waiting\n\n"};

void RegisterResponsesRoutes(ServerCore& core, HttpRoutes* routes) {
  RegisterApi(core, kResponsesApi, routes);
  RegisterTokenizing(core, "/v1/responses/input_tokens", CountTokens, ErrorBody, routes);
}

}  // namespace fox
