// Tokenizer routes: /tokenize, /detokenize and /tokenizer_info in vLLM's form. See
// openai_service.h.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/calls/format.h"
#include "server/http/openai/chat_messages.h"
#include "server/http/openai/completion_logprobs.h"
#include "server/http/openai/json_fields.h"
#include "server/http/openai/openai_service.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

using Answered = absl::StatusOr<std::string>;  // the body
using Work = Answered (*)(JsonFields& fields, const ConversionContext& context);

std::string JoinedNames(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return absl::StrJoin(ids, ",", [&](std::string* out, int32_t id) {
    *out += JsonString(TokenName(tokenizer, id));
  });
}

// The id of a special token if the text is its name and nothing else: so clients learn the id.
std::optional<int32_t> SpecialId(const std::string& text, const Tokenizer& tokenizer) {
  for (const std::optional<int32_t>& id : {tokenizer.info().bos_id, tokenizer.info().eos_id}) {
    if (id.has_value() && TokenName(tokenizer, *id) == text) return id;
  }
  return std::nullopt;
}

using Ids = absl::StatusOr<std::vector<int32_t>>;

// The first error in the fields, or that one was sent that no code reads.
absl::Status Checked(const JsonFields& fields) {
  absl::Status status = fields.status();
  status.Update(CheckUnreadFields(fields));
  return status;
}

Ids TokenizePrompt(JsonFields& fields, const ConversionContext& context) {
  const std::optional<std::string> text = fields.String("prompt");
  const bool special = fields.Bool("add_special_tokens").value_or(true);
  const absl::Status status = Checked(fields);
  if (!status.ok()) return status;
  if (!text.has_value()) return absl::InvalidArgumentError("prompt: must be set, or messages");
  Ids ids = TokenizeText(*text, special, "prompt", context);
  if (!ids.ok()) return ids.status();
  const std::optional<int32_t> id = SpecialId(*text, *context.tokenizer);
  if (id.has_value() && !special) ids = std::vector<int32_t>{*id};
  return ids;
}

// As /v1/chat/completions would read it.
Ids TokenizeChat(JsonFields& fields, const ExactJson& messages, const ConversionContext& context) {
  if (context.chat == nullptr) {
    return absl::FailedPreconditionError("messages: this model has no chat format; send prompt");
  }
  v1::ChatMessages chat;
  ReadTurn(&fields, *context.chat, &chat);
  absl::Status status = Checked(fields);
  if (status.ok()) status = ReadMessages(&messages, *context.chat, &chat);
  if (!status.ok()) return status;
  return TokenizeMessages(chat, context);
}

Answered AnswerTokenize(JsonFields& fields, const ConversionContext& context) {
  const bool names = fields.Bool("return_token_strs").value_or(false);
  const ExactJson* messages = fields.Find("messages");
  const Ids ids = messages == nullptr ? TokenizePrompt(fields, context)
                                      : TokenizeChat(fields, *messages, context);
  if (!ids.ok()) return ids.status();
  return absl::StrCat(
      "{\"count\":", ids->size(), ",\"max_model_len\":", context.limits.max_model_len,
      ",\"tokens\":[", absl::StrJoin(*ids, ","), "],\"token_strs\":",
      names ? absl::StrCat("[", JoinedNames(*context.tokenizer, *ids), "]") : "null", "}");
}

Answered AnswerDetokenize(JsonFields& fields, const ConversionContext& context) {
  const bool is_set = fields.Find("tokens") != nullptr;
  const std::vector<uint32_t> tokens = fields.Ids("tokens");
  const bool skips = fields.Bool("skip_special_tokens").value_or(false);  // vLLM's
  if (!is_set) return absl::InvalidArgumentError("tokens: must be set");
  const absl::Status status = Checked(fields);
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> text =
      DetokenizeIds({tokens.begin(), tokens.end()}, skips, "tokens", context);
  if (!text.ok()) return text.status();
  return absl::StrCat("{\"prompt\":", JsonString(*text), "}");
}

std::string TokenizerInfo(const ConversionContext& context) {
  const Tokenizer* tokenizer = context.tokenizer;
  const auto name = [&](const std::optional<int32_t>& id) {
    return id.has_value() ? JsonString(TokenName(*tokenizer, *id)) : "null";
  };
  return absl::StrCat("{\"tokenizer_class\":", JsonString(tokenizer->info().kind),
                      ",\"bos_token\":", name(tokenizer->info().bos_id),
                      ",\"eos_token\":", name(tokenizer->info().eos_id),
                      ",\"pad_token\":null,\"chat_template\":null}");
}

void ServeTokenizer(ServerCore& core, const char* path, Work work, HttpRoutes* routes) {
  const auto answer_of = [work](const std::string& body, const ConversionContext& context) {
    absl::StatusOr<JsonFields> fields = ReadBody(body, context);
    return fields.ok() ? work(*fields, context) : Answered(fields.status());
  };
  RegisterTokenizing(core, path, answer_of, ErrorBody, routes);
}

}  // namespace

void RegisterTokenizing(ServerCore& core, const char* path, const AnswerOfBody& answer_of,
                        std::string (*error_body)(const absl::Status&), HttpRoutes* routes) {
  routes->Handle("POST", path, [=, &core](const std::shared_ptr<HttpExchange>& exchange) {
    std::string body = std::move(exchange->request.body);
    const auto bytes = static_cast<int64_t>(body.size());
    auto answer = [body = std::move(body), answer_of, &context = core.context]() mutable {
      return answer_of(std::exchange(body, {}), context);
    };
    StartCall(core, path, Call::Work::kTokenize,
              std::make_unique<AnswerFormat>(std::move(answer), error_body), bytes, exchange);
  });
}

void RegisterTokenizerRoutes(ServerCore& core, HttpRoutes* routes) {
  ServeTokenizer(core, "/tokenize", AnswerTokenize, routes);
  ServeTokenizer(core, "/detokenize", AnswerDetokenize, routes);
  if (core.context.tokenizer == nullptr) return;
  HttpAnswer info;
  info.body = TokenizerInfo(core.context);
  routes->AddPage("/tokenizer_info", info, Privilege::kUser);
}

}  // namespace fox
