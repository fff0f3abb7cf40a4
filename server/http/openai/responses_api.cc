// OpenAI's Responses API, POST /v1/responses, without a store: each request has all items
// (responses_request.h). Its answer is a list of items.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/http/openai/answer_reader.h"
#include "server/http/openai/completion_format.h"
#include "server/http/openai/openai_service.h"
#include "server/http/openai/responses_request.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(const CompletionRequest& request, const ConversionContext& context,
                  std::string id, int64_t created)
      : request_(request),
        context_(context),
        id_(std::move(id)),
        created_(created),
        answer_(request, context) {}

  // The text stays in a stream, too, because its end repeats it.
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
        seals ? absl::StrCat("\"", kThoughtSeal, absl::Base64Escape(item.text), "\"") : "null", ",",
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
