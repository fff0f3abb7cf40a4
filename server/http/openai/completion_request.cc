// CompletionRequest: each group of fields, then the whole body. See completion_request.h.
#include "server/http/openai/completion_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/request/sampling_limits.h"
#include "kernels/core/check.h"
#include "server/http/openai/chat_messages.h"
#include "server/http/openai/json_fields.h"

namespace fox {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr uint32_t kDefaultMaxTokens = 16;  // OpenAI's

absl::Status Invalid(absl::string_view message) { return absl::InvalidArgumentError(message); }

// A text, ids, or a list of either.
constexpr char kPromptForm[] =
    "prompt: must be a text, a list of texts, token ids or a list of lists of token ids";
absl::Status ReadPrompts(const ExactJson* value, std::vector<v1::GenerateRequest>* out) {
  if (value == nullptr) return Invalid("prompt: must be set");
  const auto add = [out](const ExactJson& prompt) {
    if (prompt.is_string()) {
      out->emplace_back().set_text(prompt.get<std::string>());
      return true;
    }
    std::vector<uint32_t> ids;
    if (!ReadIds(prompt, &ids)) return false;
    out->emplace_back().mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    return true;
  };
  if (!value->is_array() || (!value->empty() && !std::isnan(NumberOf(value->front())))) {
    return add(*value) ? absl::OkStatus() : Invalid(kPromptForm);
  }
  if (value->empty()) return Invalid("prompt: must not be empty");
  if (value->size() > kMaxPrompts) {
    return Invalid(absl::StrCat("prompt: at most ", kMaxPrompts, " prompts"));
  }
  for (const ExactJson& prompt : *value) {
    if (!add(prompt)) return Invalid(kPromptForm);
  }
  return absl::OkStatus();
}

void ReadBias(JsonFields* fields, v1::Sampling* sampling) {
  const ExactJson* bias = fields->Find("logit_bias");
  if (bias == nullptr) return;
  constexpr const char* kBiasForm = "an object of token ids and numbers";
  if (!bias->is_object()) return fields->Fail("logit_bias", kBiasForm);
  if (bias->size() > kMaxLogitBiases) {
    return fields->Fail("logit_bias", absl::StrCat("of at most ", kMaxLogitBiases, " ids"));
  }
  for (const auto& [key, value] : bias->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || absl::StrCat(id) != key || std::isnan(NumberOf(value))) {
      return fields->Fail("logit_bias", kBiasForm);
    }
    (*sampling->mutable_logit_bias())[id] = ToFloat(value);
  }
}

void ReadSampling(JsonFields* fields, v1::Sampling* out) {
  if (const auto v = fields->Float("temperature")) out->set_temperature(*v);
  if (const auto v = fields->Float("top_p")) out->set_top_p(*v);
  if (const auto v = fields->Float("min_p")) out->set_min_p(*v);
  if (const auto v = fields->Int("top_k", -1, kMaxInt)) {
    out->set_top_k(*v < 0 ? 0 : static_cast<uint32_t>(*v));
  }
  if (const auto v = fields->Float("presence_penalty")) out->set_presence_penalty(*v);
  if (const auto v = fields->Float("frequency_penalty")) out->set_frequency_penalty(*v);
  if (const auto v = fields->Float("repetition_penalty")) out->set_repetition_penalty(*v);
  if (const auto v = fields->Int("seed", std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max())) {
    out->set_seed(static_cast<uint64_t>(*v));
  }
  for (uint32_t id : fields->Ids("allowed_token_ids")) out->add_allowed_token_ids(id);
  ReadBias(fields, out);
}

void ReadStopping(JsonFields* fields, CompletionRequest* request) {
  v1::Stopping* const out = request->settings.mutable_stopping();
  std::optional<int64_t> max_tokens = fields->Int("max_tokens", request->chat ? 1 : 0, kMaxInt);
  if (request->chat) {
    const auto newer = fields->Int("max_completion_tokens", 1, kMaxInt);
    if (newer.has_value() && max_tokens.value_or(*newer) != *newer) {
      fields->Fail("max_tokens", "max_completion_tokens, or absent");
    }
    if (newer.has_value()) max_tokens = newer;
  }
  request->max_tokens_sent = max_tokens.has_value();
  if (!request->chat || max_tokens.has_value()) {
    out->set_max_tokens(static_cast<uint32_t>(max_tokens.value_or(kDefaultMaxTokens)));
  }
  if (const auto v = fields->Int("min_tokens", 0, kMaxInt)) {
    out->set_min_tokens(static_cast<uint32_t>(*v));
  }
  for (std::string& stop : fields->Strings("stop", kMaxStops)) out->add_stop(std::move(stop));
  for (uint32_t id : fields->Ids("stop_token_ids")) out->add_stop_token_ids(id);
  if (const auto v = fields->Bool("ignore_eos")) out->set_ignore_eos(*v);
  if (const auto v = fields->Bool("include_stop_str_in_output")) {
    out->set_include_stop_str_in_output(*v);
  }
}

int32_t ReadLogprobs(JsonFields* fields, int32_t most, bool chat) {
  if (chat) {
    const bool asked = fields->Bool("logprobs").value_or(false);
    const int64_t top = fields->Int("top_logprobs", 0, most).value_or(0);
    if (top > 0 && !asked) fields->Fail("top_logprobs", "absent without logprobs");
    return asked ? static_cast<int32_t>(top) : -1;
  }
  const ExactJson* value = fields->Find("logprobs");
  if (value != nullptr && value->is_boolean()) {
    fields->Fail("logprobs", absl::StrCat("an integer in [0, ", most,
                                          "]; true and false are the chat API's form"));
  }
  return static_cast<int32_t>(fields->Int("logprobs", 0, most).value_or(-1));
}

void ReadOutput(JsonFields* fields, const EngineOptions& engine, CompletionRequest* out) {
  v1::Output* output = out->settings.mutable_output();
  out->echo = !out->chat && fields->Bool("echo").value_or(false);
  out->stream = fields->Bool("stream").value_or(false);
  out->logprobs = ReadLogprobs(fields, engine.max_logprobs, out->chat);
  output->set_acp_stats(true);
  if (const auto v = fields->Bool("skip_special_tokens")) output->set_skip_special_tokens(*v);
  output->set_text(true);
  output->set_echo(out->echo);
  if (out->logprobs >= 0) {
    output->set_logprobs(out->logprobs);
    if (out->echo) output->set_prompt_logprobs(out->logprobs);
  }
  if (fields->Bool("acp_windows").value_or(false)) {
    if (!out->stream) return fields->Fail("acp_windows", "absent without stream");
    out->settings.mutable_output()->set_acp_windows(true);
  }
  const ExactJson* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields->Fail("stream_options", "an object");
  if (!out->stream) return fields->Fail("stream_options", "absent without stream");
  JsonFields within(*options);
  out->include_usage = within.Bool("include_usage").value_or(false);
  out->continuous_usage =
      within.Bool("continuous_usage_stats").value_or(false) && out->include_usage;
  output->set_token_ids(out->continuous_usage);  // they are counted
  fields->FailWithin("stream_options", within.status());
  fields->FailWithin("stream_options", CheckUnreadFields(within, FieldPlace::kStreamOptions));
}

void ReadScheduling(JsonFields* fields, bool chat, v1::GenerateRequest* out) {
  if (const auto v = fields->Int("priority", -kMaxInt - 1, kMaxInt)) {
    out->set_priority(static_cast<int32_t>(*v));
  }
  if (std::optional<std::string> salt = fields->String("cache_salt")) {
    out->mutable_cache()->set_cache_salt(*std::move(salt));
  }
  if (!chat) {
    if (const auto v = fields->Bool("add_special_tokens")) out->set_add_special_tokens(*v);
  }
  if (const auto v = fields->Int("truncate_prompt_tokens", 1, kMaxInt)) {
    out->set_truncate_prompt_tokens(static_cast<uint32_t>(*v));
  }
}

// Takes the values of --acp.
void ReadAcp(JsonFields* fields, v1::AcpOptions* out) {
  if (const auto v = fields->Float("log_tolerance")) out->set_log_tolerance(*v);
  if (const auto v = fields->Bool("audit")) out->set_audit(*v);
  const std::optional<std::string> name = fields->String("acp");
  if (!name.has_value()) return;
  v1::AcpMode mode = v1::ACP_MODE_UNSPECIFIED;
  if (!v1::AcpMode_Parse(absl::AsciiStrToUpper(*name), &mode) || mode == v1::ACP_MODE_UNSPECIFIED) {
    return fields->Fail("acp", "off, paper or certified");
  }
  out->set_mode(mode);
}

void ReadCounts(JsonFields* fields, CompletionRequest* out) {
  out->n = static_cast<int32_t>(fields->Int("n", 1, 16).value_or(1));
  out->settings.mutable_sampling()->set_n(static_cast<uint32_t>(out->n));
  if (fields->Int("best_of", 1, kMaxInt).value_or(out->n) != out->n) {
    fields->Fail("best_of", "n, or absent: not supported");
  }
}

constexpr char kFormatForm[] =
    R"({"type": "text"}, {"type": "json_object"} or {"type": "json_schema", )"
    R"("json_schema": {"schema": {...}}})";

// {"name": .., "schema": {..}}. False: it is not.
bool ReadNamedSchema(JsonFields* fields, const ExactJson& value, v1::Sampling* out) {
  if (!value.is_object()) return false;
  JsonFields named(value);
  const ExactJson* schema = named.Find("schema");
  if (schema == nullptr || !schema->is_object()) return false;
  out->set_json_schema(TextOf(*schema, /*spaced=*/false));
  fields->FailWithin("response_format.json_schema", CheckUnreadFields(named, FieldPlace::kSchema));
  return true;
}

// A schema stands in json_schema, as OpenAI has it, or beside the type, as other servers do:
// `value` is Hugging Face's, whose client sends it for a json_schema, too.
void ReadFormat(JsonFields* fields, v1::Sampling* out) {
  const ExactJson* value = fields->Find("response_format");
  if (value == nullptr) return;
  if (!value->is_object()) return fields->Fail("response_format", kFormatForm);
  JsonFields format(*value);
  const std::string type = format.String("type").value_or("");
  const bool is_schema = type == "json_schema", is_object = type == "json_object";
  const ExactJson* beside = is_schema || is_object ? format.Find("schema") : nullptr;
  if (beside == nullptr && (is_schema || is_object)) beside = format.Find("value");
  if (is_object && beside != nullptr && *beside == ExactJson::object()) beside = nullptr;
  const ExactJson* named = is_schema ? format.Find("json_schema") : nullptr;
  bool right = type == "text" || is_object || beside != nullptr || named != nullptr;
  if (beside != nullptr) {
    right = beside->is_object() && named == nullptr;
    out->set_json_schema(TextOf(*beside, /*spaced=*/false));
  } else if (named != nullptr) {
    right = ReadNamedSchema(fields, *named, out);
  } else if (is_object) {
    out->set_json_object(true);
  }
  if (!right) return fields->Fail("response_format", kFormatForm);
  fields->FailWithin("response_format", CheckUnreadFields(format, FieldPlace::kFormat));
}

// vLLM's.
void ReadStructured(JsonFields* fields, v1::Sampling* out) {
  const ExactJson* wanted = fields->Find("structured_outputs");
  if (wanted == nullptr) return;
  const auto fail = [&] {
    fields->Fail("structured_outputs",
                 "an object with one of json, json_object, regex, choice and grammar");
  };
  if (!wanted->is_object()) return fail();
  for (const auto& [name, value] : wanted->items()) {
    if (value.is_null()) continue;
    if (name == "json" && value.is_string()) {
      out->set_json_schema(value.get<std::string>());
    } else if (name == "json" && value.is_object()) {
      out->set_json_schema(TextOf(value, /*spaced=*/false));
    } else if (name == "regex" && value.is_string()) {
      out->set_regex(value.get<std::string>());
    } else if (name == "grammar" && value.is_string()) {
      out->set_grammar(value.get<std::string>());
    } else if (name == "json_object" && value.is_boolean()) {
      out->set_json_object(value.get<bool>());
    } else if (name == "choice" && value.is_array() && !value.empty() &&
               value.size() <= kMaxGrammarBytes) {
      for (const ExactJson& choice : value) {
        if (!choice.is_string()) return fail();
        out->add_choice(choice.get<std::string>());
      }
    } else {
      return fail();
    }
  }
}

absl::Status CheckCounts(CompletionRequest* out) {
  if (out->prompts.size() * static_cast<size_t>(out->n) > kMaxChoices) {
    return Invalid(absl::StrCat("n: at most ", kMaxChoices, " choices in all"));
  }
  out->score = out->max_tokens_sent && out->settings.stopping().max_tokens() == 0;
  if (!out->score) return absl::OkStatus();
  if (!out->echo) return Invalid("max_tokens: must be at least 1 without echo");
  if (out->n > 1) return Invalid("n: must be 1 where max_tokens is 0");
  if (HasGrammar(out->settings.sampling())) {
    return Invalid("max_tokens: must be at least 1 where the answer has a grammar");
  }
  out->settings.mutable_output()->set_prompt_logprobs(std::max(0, out->logprobs));
  return absl::OkStatus();
}

absl::Status CheckModel(const ConversionContext& context, bool chat) {
  if (context.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        "the model has no tokenizer, and this port answers with text; the gRPC port takes and "
        "gives token ids");
  }
  if (chat && context.chat == nullptr) {
    return absl::FailedPreconditionError("this model has no chat format; use /v1/completions");
  }
  return absl::OkStatus();
}

// fox.v1 reduces max_tokens to the room in the context; OpenAI's servers refuse the request.
absl::Status CheckRoom(const char* field, uint32_t max_tokens, const Request& sequence) {
  const auto room = static_cast<uint32_t>(sequence.stop.max_tokens);
  if (max_tokens <= room) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      field, ": ", max_tokens, " are more than the ", room, " that a prompt of ",
      sequence.prompt.size(), " tokens leaves. This model's maximum context length is ",
      room + sequence.prompt.size(), " tokens"));
}

}  // namespace

bool HasGrammar(const v1::Sampling& sampling) {
  return sampling.has_json_schema() || sampling.has_regex() || sampling.has_grammar() ||
         sampling.choice_size() > 0 || sampling.json_object();
}

bool CountsThoughts(const ConversionContext& context) {
  return context.chat->thinking().has_value();
}

absl::StatusOr<JsonFields> BeginChat(const std::string& body, const ConversionContext& context,
                                     CompletionRequest* out) {
  const absl::Status able = CheckModel(context, /*chat=*/true);
  if (!able.ok()) return able;
  absl::StatusOr<JsonFields> fields = ReadBody(body, context);
  if (!fields.ok()) return fields.status();
  out->chat = true;
  out->prompts.emplace_back().mutable_messages();
  out->stream = fields->Bool("stream").value_or(false);
  v1::GenerateRequest& settings = out->settings;
  settings.mutable_output()->set_acp_stats(true);
  settings.mutable_output()->set_text(true);
  settings.mutable_output()->set_token_ids(CountsThoughts(context));
  ReadSampling(&*fields, settings.mutable_sampling());
  ReadScheduling(&*fields, /*chat=*/true, &settings);
  ReadAcp(&*fields, settings.mutable_acp());
  return fields;
}

absl::StatusOr<CompletionRequest> ParseCompletion(const std::string& body,
                                                  const ConversionContext& context, bool chat) {
  absl::Status status = CheckModel(context, chat);
  if (!status.ok()) return status;
  absl::StatusOr<JsonFields> fields = ReadBody(body, context);
  if (!fields.ok()) return fields.status();
  CompletionRequest out;
  out.chat = chat;
  ReadSampling(&*fields, out.settings.mutable_sampling());
  ReadStopping(&*fields, &out);
  ReadOutput(&*fields, context.engine, &out);
  ReadScheduling(&*fields, chat, &out.settings);
  ReadAcp(&*fields, out.settings.mutable_acp());
  ReadCounts(&*fields, &out);
  ReadFormat(&*fields, out.settings.mutable_sampling());
  ReadStructured(&*fields, out.settings.mutable_sampling());
  const ExactJson* prompt = fields->Find(chat ? "messages" : "prompt");
  v1::ChatMessages* const messages = chat ? out.prompts.emplace_back().mutable_messages() : nullptr;
  if (chat) {
    ReadTurn(&*fields, *context.chat, messages);
    if (CountsThoughts(context)) out.settings.mutable_output()->set_token_ids(true);
  }
  status = fields->status();
  if (status.ok()) status = CheckUnreadFields(*fields);
  if (status.ok()) {
    status =
        chat ? ReadMessages(prompt, *context.chat, messages) : ReadPrompts(prompt, &out.prompts);
  }
  if (status.ok()) status = CheckCounts(&out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<GenerationSpec> Convert(const CompletionRequest& request, size_t prompt,
                                       const ConversionContext& context) {
  FOX_CHECK(prompt < request.prompts.size());
  v1::GenerateRequest one = request.settings;
  one.MergeFrom(request.prompts[prompt]);
  absl::StatusOr<GenerationSpec> spec =
      ConvertGenerate(one, request.stream, context, request.score);
  if (spec.ok() && request.max_tokens_sent) {
    const absl::Status room =
        CheckRoom(request.max_tokens_field, one.stopping().max_tokens(), spec->sequences.front());
    if (!room.ok()) return room;
  }
  return spec;
}

}  // namespace fox
