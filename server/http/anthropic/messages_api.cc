// Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages): POST /v1/messages
// and /v1/messages/count_tokens. Its body becomes the request of a chat, its answer a list of
// blocks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "server/http/openai/answer_reader.h"
#include "server/http/openai/chat_messages.h"
#include "server/http/openai/openai_service.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

// Claude Code begins its system prompt with a line that differs in each request. Nothing behind it
// would be found in the prefix cache, and it means nothing to a model.
constexpr char kBillingLine[] = "x-anthropic-billing-header:";

// A thought comes back as it was told, so that nothing has to be signed.
constexpr char kSignature[] = "unsigned";

std::string Numbered(const char* name, size_t index) { return absl::StrCat(name, "[", index, "]"); }

bool IsUnseen(const std::string& type) { return type == "image" || type == "document"; }

// A text, or blocks of text, which become its lines. In a tool's `answer` other blocks may stand,
// too.
absl::Status ReadTexts(const ExactJson& value, bool answer, std::string* out) {
  if (value.is_string()) {
    *out = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return absl::InvalidArgumentError(": must be a text or a list of blocks");
  for (size_t i = 0; i < value.size(); ++i) {
    JsonFields block = FieldsOf(value[i]);
    const std::string type = block.String("type").value_or("");
    if (answer && IsUnseen(type)) {
      JoinLine(kUnseenPart, out);
      continue;
    }
    const std::string text = block.String("text").value_or("");
    const absl::Status status =
        type != "text" ? UnknownType(type, "text") : CheckFields(block, FieldPlace::kMessagesBlock);
    if (!status.ok()) return Below(Numbered("", i), status);
    JoinLine(text, out);
  }
  return absl::OkStatus();
}

// Turns of a chat, of messages in order.
class TurnReader {
 public:
  TurnReader(const ChatFormat& format, v1::ChatMessages* out) : out_(*out), turns_(format, out) {}

  absl::Status ReadSystem(const ExactJson& value) {
    std::string text;
    const absl::Status status = ReadTexts(value, /*answer=*/false, &text);
    if (absl::StartsWith(text, kBillingLine)) {
      text.erase(0, std::min(text.size(), text.find('\n')) + 1);
    }
    if (!text.empty()) turns_.AddLine("system", text);
    return Below("system", status);
  }

  absl::Status ReadMessages(const ExactJson* value) {
    if (value == nullptr || !value->is_array() || value->empty()) {
      return absl::InvalidArgumentError("messages: must be a list of {\"role\", \"content\"}");
    }
    for (size_t i = 0; i < value->size(); ++i) {
      const absl::Status status = ReadMessage((*value)[i]);
      if (!status.ok()) return Below(Numbered("messages", i), status);
    }
    const v1::ChatMessage& last = out_.turns(out_.turns_size() - 1);
    if (last.role() == "assistant" && last.tool_calls().empty()) {
      out_.set_continue_final_message(true);
    }
    turns_.Finish();
    return absl::OkStatus();
  }

 private:
  absl::Status ReadMessage(const ExactJson& value) {
    JsonFields message = FieldsOf(value);
    const std::string role = message.String("role").value_or("");
    const ExactJson* content = message.Find("content");
    if (message.status().ok() && role != "user" && role != "assistant" && role != "system") {
      return absl::InvalidArgumentError(".role: must be user, assistant or system");
    }
    absl::Status status = CheckFields(message, FieldPlace::kMessagesTurn);
    if (!status.ok()) return status;
    if (content == nullptr) return absl::InvalidArgumentError(".content: must be set");
    if (!content->is_array() || role == "system") {
      std::string text;
      status = ReadTexts(*content, /*answer=*/false, &text);
      turns_.AddLine(role, text);
      return Below(".content", status);
    }
    if (content->empty() || role == "assistant") turns_.Turn(role);
    // Claude Code puts a document that a tool has read beside the tool's answer, too.
    const bool answers = std::any_of(content->begin(), content->end(), [](const ExactJson& block) {
      return FieldsOf(block).String("type") == "tool_result";
    });
    for (size_t i = 0; i < content->size() && status.ok(); ++i) {
      JsonFields block = FieldsOf((*content)[i]);
      status = role == "user" ? ReadUserBlock(answers, &block) : ReadAssistantBlock(&block);
      if (!status.ok()) status = Below(Numbered(".content", i), status);
    }
    return status;
  }

  // `answers`: the message has a tool's answer.
  absl::Status ReadUserBlock(bool answers, JsonFields* block) {
    const std::string type = block->String("type").value_or("");
    if (type == "text") {
      turns_.AddLine("user", block->String("text").value_or(""));
    } else if (type == "tool_result") {
      const ExactJson* content = block->Find("content");
      std::string* const text = turns_.AddAnswer(block->String("tool_use_id").value_or(""));
      const auto status =
          content == nullptr ? absl::OkStatus() : ReadTexts(*content, /*answer=*/true, text);
      if (!status.ok()) return Below(".content", status);
    } else if (answers && IsUnseen(type)) {
      turns_.AddLine("user", kUnseenPart);
      return absl::OkStatus();
    } else {
      return UnknownType(type, "text or tool_result");
    }
    return CheckFields(*block, FieldPlace::kMessagesBlock);
  }

  absl::Status ReadAssistantBlock(JsonFields* block) {
    const std::string type = block->String("type").value_or("");
    if (type == "text") {
      turns_.AddLine("assistant", block->String("text").value_or(""));
    } else if (type == "thinking") {
      turns_.AddThought(block->String("thinking").value_or(""));
      block->Find("signature");
    } else if (type == "redacted_thinking") {
      block->Find("data");  // another server's, in its own cipher
    } else if (type == "tool_use") {
      const std::string name = block->String("name").value_or("");
      const ExactJson* input = block->Find("input");
      if (name.empty() || (input != nullptr && !input->is_object())) {
        return absl::InvalidArgumentError(": a tool_use must have a name, and an object as input");
      }
      turns_.AddCall(block->String("id").value_or(""), name,
                     input == nullptr ? "{}" : TextOf(*input, /*spaced=*/true));
    } else {
      return UnknownType(type, "text, thinking or tool_use");
    }
    return CheckFields(*block, FieldPlace::kMessagesBlock);
  }

  v1::ChatMessages& out_;
  ChatTurns turns_;
};

absl::Status ReadMessagesTool(const ExactJson& value, v1::ChatMessages* out) {
  JsonFields tool = FieldsOf(value);
  const std::string type = tool.String("type").value_or("custom");
  if (type != "custom") {
    return absl::InvalidArgumentError(
        absl::StrCat(".type: ", absl::CHexEscape(type.substr(0, 32)),
                     " is a tool of Anthropic's; send tools with an input_schema"));
  }
  ExactJson function = ExactJson::object();
  for (const auto& [theirs, ours] : {std::pair<const char*, const char*>{"name", "name"},
                                     {"description", "description"},
                                     {"input_schema", "parameters"},
                                     {"strict", "strict"}}) {
    if (const ExactJson* found = tool.Find(theirs)) function[ours] = *found;
  }
  absl::Status status = CheckFields(tool, FieldPlace::kMessagesTool);
  if (!status.ok()) return status;
  out->add_tools(TextOf(ExactJson({{"type", "function"}, {"function", function}}), true));
  return absl::OkStatus();
}

absl::Status ReadToolsAndChoice(JsonFields* body, v1::ChatMessages* out) {
  const ExactJson* tools = body->Find("tools");
  if (tools != nullptr && !tools->is_array()) body->Fail("tools", "a list of tools");
  JsonFields choice = body->Object("tool_choice");
  const std::string type = choice.String("type").value_or("auto");
  const std::string name = choice.String("name").value_or("");
  const bool alone = choice.Bool("disable_parallel_tool_use").value_or(false);
  const absl::Status status = CheckFields(choice, FieldPlace::kMessagesBlock);
  if (!status.ok()) return Below("tool_choice", status);
  if (type == "none") return absl::OkStatus();
  if (type == "any") {
    out->set_call_required(true);
  } else if (type == "tool" && !name.empty()) {
    out->set_call_name(name);
  } else if (type != "auto") {
    body->Fail("tool_choice", R"({"type": "auto", "any", "none", or "tool" with a "name"})");
  }
  if (!body->status().ok() || tools == nullptr || tools->empty()) return absl::OkStatus();
  if (alone) out->set_one_call(true);
  for (size_t i = 0; i < tools->size(); ++i) {
    const absl::Status read = ReadMessagesTool((*tools)[i], out);
    if (!read.ok()) return Below(Numbered("tools", i), read);
  }
  return absl::OkStatus();
}

// Without the field the API's models do not think, so a model with a switch has it off.
absl::Status ReadThinking(JsonFields* body, const ChatFormat& format, v1::ChatMessages* out) {
  JsonFields thinking = body->Object("thinking");
  const std::string type = thinking.String("type").value_or("disabled");
  thinking.Find("budget_tokens");  // a hint: the model ends its thought itself
  thinking.Find("display");
  const absl::Status status = CheckFields(thinking, FieldPlace::kMessagesBlock);
  if (!status.ok()) return Below("thinking", status);
  if (type == "enabled" || type == "adaptive") return absl::OkStatus();
  if (type != "disabled") {
    body->Fail("thinking", R"({"type": "enabled", "adaptive" or "disabled"})");
  } else if (format.thinking().has_value() && !format.thinking()->skip.empty()) {
    out->set_enable_thinking(false);
  } else if (format.thinking().has_value() && !thinking.object().empty()) {
    body->Fail("thinking", "absent or enabled: the model always thinks");
  }
  return absl::OkStatus();
}

absl::Status ReadOutputConfig(JsonFields* body, v1::Sampling* out) {
  JsonFields config = body->Object("output_config");
  JsonFields format = config.Object("format");
  absl::Status status = CheckFields(config, FieldPlace::kMessagesOutput);
  if (!status.ok() || format.object().empty()) return Below("output_config", status);
  const ExactJson* schema = format.Find("schema");
  if (format.String("type") != "json_schema" || schema == nullptr || !schema->is_object()) {
    return absl::InvalidArgumentError(
        R"(output_config.format: must be {"type": "json_schema", "schema": {..}})");
  }
  out->set_json_schema(TextOf(*schema, /*spaced=*/false));
  return Below("output_config.format", CheckFields(format, FieldPlace::kMessagesOutput));
}

// `counts`: for count_tokens, where nothing is generated.
absl::StatusOr<CompletionRequest> ParseMessages(const std::string& body,
                                                const ConversionContext& context, bool counts) {
  CompletionRequest request;
  absl::StatusOr<JsonFields> fields = BeginChat(body, context, &request);
  if (!fields.ok()) return fields.status();
  v1::GenerateRequest& settings = request.settings;
  v1::ChatMessages& chat = *request.prompts[0].mutable_messages();
  // Not compared with the context: clients have to send a number and send large ones. A longer
  // answer ends with the context, as newer models of this API do.
  const auto max_tokens = fields->Int("max_tokens", 1, INT32_MAX);
  if (!counts && fields->status().ok() && !max_tokens.has_value()) {
    fields->Fail("max_tokens", "set");
  }
  settings.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(max_tokens.value_or(1)));
  for (std::string& stop : fields->Strings("stop_sequences", kMaxStops)) {
    settings.mutable_stopping()->add_stop(std::move(stop));
  }
  absl::Status status = ReadToolsAndChoice(&*fields, &chat);
  status.Update(ReadThinking(&*fields, *context.chat, &chat));
  status.Update(ReadOutputConfig(&*fields, settings.mutable_sampling()));
  const ExactJson* system = fields->Find("system");
  const ExactJson* messages = fields->Find("messages");
  status.Update(fields->status());
  status.Update(CheckUnreadFields(*fields, FieldPlace::kMessagesBody));
  TurnReader turns(*context.chat, &chat);
  if (status.ok() && system != nullptr) status = turns.ReadSystem(*system);
  if (status.ok()) status = turns.ReadMessages(messages);
  if (!status.ok()) return status;
  return request;
}

// Clients know an error by its type and, where a prompt is too long, by its words.
std::string MessagesError(const absl::Status& status) {
  const int code = HttpStatusOf(status.code());
  const char* type = code == 401   ? "authentication_error"
                     : code == 403 ? "permission_error"
                     : code == 404 ? "not_found_error"
                     : code == 429 ? "rate_limit_error"
                     : code == 503 ? "overloaded_error"
                     : code == 504 ? "timeout_error"
                     : code >= 500 ? "api_error"
                                   : "invalid_request_error";
  const ExactJson ours = ExactJson::parse(ErrorBody(status));
  std::string message = ours["error"]["message"].get<std::string>();
  if (absl::IsOutOfRange(status)) message = absl::StrCat("prompt is too long: ", message);
  // Told so, Anthropic's client sends the whole conversation instead of a Thread, which is stored.
  const bool thread = absl::StartsWith(message, "thread: ");
  return absl::StrCat(
      R"({"type":"error","error":{"type":")", type, R"(","message":)", JsonString(message),
      thread ? R"(,"details":{"error_code":"thread_unsupported_request"})" : "", "}}");
}

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(const CompletionRequest& request, const ConversionContext& context, std::string id)
      : request_(request), context_(context), id_(std::move(id)), answer_(request, context) {}

  int64_t AddEvent(size_t, const v1::GenerateDelta& event) override {
    parts_ = answer_.Read(event);
    if (request_.stream) return 0;
    for (AnswerPart& part : parts_) {
      if (Continues(part)) {
        blocks_.back().text += part.text;
      } else {
        blocks_.push_back(std::move(part));
      }
    }
    return static_cast<int64_t>(event.delta().text().size());
  }

  std::string TakeChunk(size_t, const v1::GenerateDelta& event) override {
    if (event.has_prompt()) return "";
    std::string out;
    if (!std::exchange(begun_, true)) {
      out = Event("message_start", absl::StrCat(R"("message":)", Message("", "null"), "}"));
    }
    for (AnswerPart& part : parts_) {
      const std::string text = part.text;
      if (!Continues(part)) {
        out += CloseBlock();
        part.text.clear();
        blocks_.push_back(part);
        out += Event("content_block_start",
                     absl::StrCat(Place(), R"(,"content_block":)", Block(part), "}"));
      }
      if (!text.empty()) out += Delta(part.kind, text);
    }
    if (!event.has_finish()) return out;
    return absl::StrCat(
        out, CloseBlock(),
        Event("message_delta", absl::StrCat(R"("delta":{)", StopReason(), R"(},"usage":)", Usage(),
                                            answer_.Fox(), "}")));
  }

  std::string LastChunks() override {
    return ServerSentEvent(R"({"type":"message_stop"})", "message_stop");
  }

  std::string EncodeFailure(const absl::Status& status) const override {
    return ServerSentEvent(MessagesError(status), "error");
  }

  void DropContents() override {
    parts_.clear();
    blocks_.clear();
  }

  std::string TakeBody() override {
    std::string content;
    for (const AnswerPart& block : blocks_) {
      absl::StrAppend(&content, content.empty() ? "" : ",", Block(block));
    }
    return Message(content, StopReason());
  }

 private:
  using Kind = AnswerPart::Kind;

  static std::string Event(const std::string& type, const std::string& rest) {
    return ServerSentEvent(absl::StrCat(R"({"type":")", type, R"(",)", rest), type);
  }
  // True if a part goes on with the last block.
  bool Continues(const AnswerPart& part) const {
    return !blocks_.empty() && blocks_.back().kind == part.kind && part.id.empty();
  }
  std::string Place() const { return absl::StrCat(R"("index":)", blocks_.size() - 1); }

  // In a stream a block begins empty, and its parts follow.
  std::string Block(const AnswerPart& block) const {
    if (block.kind == Kind::kText) {
      return absl::StrCat(R"({"type":"text","text":)", JsonString(block.text), "}");
    }
    if (block.kind == Kind::kThought) {
      return absl::StrCat(R"({"type":"thinking","thinking":)", JsonString(block.text),
                          R"(,"signature":")", request_.stream ? "" : kSignature, R"("})");
    }
    // A call that max_tokens has cut has no input.
    return absl::StrCat(R"({"type":"tool_use","id":")", block.id, R"(","name":)",
                        JsonString(block.name), R"(,"input":)",
                        ExactJson::accept(block.text) ? block.text : "{}", "}");
  }
  std::string Delta(Kind kind, const std::string& text) const {
    const char* type = kind == Kind::kText      ? R"("text_delta","text")"
                       : kind == Kind::kThought ? R"("thinking_delta","thinking")"
                                                : R"("input_json_delta","partial_json")";
    return Event("content_block_delta",
                 absl::StrCat(Place(), R"(,"delta":{"type":)", type, ":", JsonString(text), "}}"));
  }
  std::string CloseBlock() const {
    if (blocks_.empty()) return "";
    const std::string signature =
        absl::StrCat(R"(,"delta":{"type":"signature_delta","signature":")", kSignature, R"("}})");
    const bool thought = blocks_.back().kind == Kind::kThought;
    return (thought ? Event("content_block_delta", Place() + signature) : "") +
           Event("content_block_stop", Place() + "}");
  }
  // `content`: blocks; `stop`: StopReason, or none yet.
  std::string Message(const std::string& content, const std::string& stop) const {
    const bool ended = stop != "null";
    return absl::StrCat(R"({"id":)", JsonString(id_), R"(,"type":"message","role":"assistant")",
                        R"(,"model":)", JsonString(context_.served_model_name), R"(,"content":[)",
                        content, "],", ended ? stop : R"("stop_reason":null,"stop_sequence":null)",
                        R"(,"usage":)", Usage(), ended ? answer_.Fox() : "", "}");
  }
  std::string Usage() const {
    return absl::StrCat(R"({"input_tokens":)", answer_.prompt_tokens - answer_.cached_tokens,
                        R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)",
                        answer_.cached_tokens, R"(,"output_tokens":)", answer_.tokens,
                        R"(,"output_tokens_details":{"thinking_tokens":)", answer_.thought_tokens,
                        "}}");
  }
  std::string StopReason() const {
    const v1::Finish& finish = answer_.finish;
    const auto& stops = request_.settings.stopping().stop();
    const bool sent = finish.has_stop_str() &&
                      std::find(stops.begin(), stops.end(), finish.stop_str()) != stops.end();
    const bool full = answer_.tokens < request_.settings.stopping().max_tokens();
    const char* reason = answer_.called                  ? "tool_use"
                         : sent                          ? "stop_sequence"
                         : finish.reason() == v1::ABORT  ? "pause_turn"
                         : finish.reason() != v1::LENGTH ? "end_turn"
                         : full                          ? "model_context_window_exceeded"
                                                         : "max_tokens";
    return absl::StrCat(R"("stop_reason":")", reason, R"(","stop_sequence":)",
                        sent ? JsonString(finish.stop_str()) : "null");
  }

  const CompletionRequest& request_;
  const ConversionContext& context_;
  const std::string id_;
  ChatAnswer answer_;
  std::vector<AnswerPart> parts_;   // of the last event
  std::vector<AnswerPart> blocks_;  // in a stream without their text
  bool begun_ = false;              // in a stream
};

absl::StatusOr<std::string> CountTokens(const std::string& body, const ConversionContext& context) {
  const auto request = ParseMessages(body, context, /*counts=*/true);
  if (!request.ok()) return request.status();
  const auto ids = TokenizeMessages(request->prompts[0].messages(), context);
  if (!ids.ok()) return ids.status();
  return absl::StrCat(R"({"input_tokens":)", ids->size(), "}");
}

}  // namespace

const HttpApi kMessagesApi = {
    .path = "/v1/messages",
    .id_prefix = "msg_",
    .parse = [](const std::string& body,
                const ConversionContext& context) { return ParseMessages(body, context, false); },
    .make_writer = [](const CompletionRequest& request, const ConversionContext& context,
                      const std::string&, const std::string& id,
                      int64_t) -> std::unique_ptr<AnswerWriter> {
      return std::make_unique<MessagesWriter>(request, context, id);
    },
    .error_body = MessagesError,
    .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n"};

void RegisterMessagesRoutes(ServerCore& core, HttpRoutes* routes) {
  RegisterApi(core, kMessagesApi, routes);
  RegisterTokenizing(core, "/v1/messages/count_tokens", CountTokens, MessagesError, routes);
}

}  // namespace fox
