// The JSON body of OpenAI's completions and of the other APIs, converted to engine requests, one
// for each prompt. They are the same when the body is written again; a refusal becomes an answer
// that is JSON. With an odd first byte the model has no tokenizer.
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "models/checkpoint/json_reader.h"
#include "server/http/openai/completion_format.h"
#include "server/http/port/http_error.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/server/request_world.h"

namespace fox {
namespace {

using Json = nlohmann::json;

void CheckAnswer(const absl::Status& status, const HttpApi& api) {
  CheckRefusal(status);
  const HttpAnswer answer = ErrorAnswer(status, api.error_body(status), 0);
  FOX_CHECK(answer.status >= 400 && answer.status < 500);
  const Json body = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  FOX_CHECK(body.is_object() && body.at("error").at("message").is_string());
}

void CheckPrompts(const CompletionRequest& request, const CompletionRequest& again, bool seeded,
                  const ConversionContext& context, const HttpApi& api) {
  FOX_CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPrompts);
  FOX_CHECK(request.n >= 1 && request.n <= 16);
  FOX_CHECK(request.prompts.size() * static_cast<size_t>(request.n) <= kMaxChoices);
  FOX_CHECK(request.score == (!request.chat && request.settings.stopping().max_tokens() == 0));
  FOX_CHECK(again.prompts.size() == request.prompts.size());
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const absl::StatusOr<GenerationSpec> spec = Convert(request, i, context);
    const absl::StatusOr<GenerationSpec> other = Convert(again, i, context);
    FOX_CHECK(spec.status() == other.status());
    if (!spec.ok()) {
      CheckAnswer(spec.status(), api);
      continue;
    }
    CheckSpec(*spec, context);
    FOX_CHECK(spec->sequences.size() == static_cast<size_t>(request.n));
    FOX_CHECK(SameWork(*spec, *other, seeded));
  }
}

bool IsJson(const std::string& text) { return Json::accept(text); }

// True if each line of a stream is empty, a name, or JSON.
bool IsStream(const std::string& chunks) {
  for (const absl::string_view line : absl::StrSplit(chunks, '\n')) {
    const bool plain = line.empty() || absl::StartsWith(line, "event: ") || line == "data: [DONE]";
    if (!plain && !(absl::StartsWith(line, "data: ") && IsJson(std::string(line.substr(6))))) {
      return false;
    }
  }
  return true;
}

void CheckWriter(const CompletionRequest& request, const std::string& text,
                 const ConversionContext& context, const HttpApi& api) {
  const auto writer = api.make_writer(request, context, "print", "id_1", 7);
  std::string chunks;
  const auto add = [&](const v1::GenerateDelta& event) {
    FOX_CHECK(writer->AddEvent(0, event) >= 0);
    if (request.stream) chunks += writer->TakeChunk(0, event);
  };
  for (size_t at = 0; at < text.size(); at += 5) {
    v1::GenerateDelta delta;
    delta.mutable_delta()->set_text(text.substr(at, 5));
    add(delta);
  }
  v1::GenerateDelta end;
  end.mutable_finish()->set_reason(text.size() % 2 == 0 ? v1::STOP : v1::LENGTH);
  for (int i = 0; i < request.n; ++i) {
    end.mutable_finish()->set_index(static_cast<uint32_t>(i));
    add(end);
  }
  FOX_CHECK(request.stream ? IsStream(chunks + writer->LastChunks()) : IsJson(writer->TakeBody()));
  writer->DropContents();
  FOX_CHECK(IsStream(writer->EncodeFailure(absl::InternalError(text))));
}

}  // namespace

FUZZ_TEST(completion_request) {
  static const RequestWorld worlds[] = {RequestWorld(true), RequestWorld(false)};
  static const HttpApi* const apis[] = {&kCompletionsApi, &kChatApi, &kMessagesApi, &kResponsesApi};
  const size_t form = in.Below(8);
  const ConversionContext& context = worlds[form % 2].context;
  const HttpApi& api = *apis[form / 2];
  const std::string body = in.Rest();
  const absl::StatusOr<CompletionRequest> request = api.parse(body, context);
  if (!request.ok()) return CheckAnswer(request.status(), api);
  const JsonLimits limits = {body.size(), body.size(), body.size()};
  const absl::StatusOr<ExactJson> json = ReadExactJson(body, limits, "the body");
  const absl::StatusOr<CompletionRequest> again = api.parse(TextOf(*json, false), context);
  FOX_CHECK(again.ok());
  if (request->prompts.size() == 1) {
    CheckWriter(*request, body.substr(body.size() / 2), context, api);
  }
  CheckPrompts(*request, *again, request->settings.sampling().has_seed(), context, api);
}

}  // namespace fox
