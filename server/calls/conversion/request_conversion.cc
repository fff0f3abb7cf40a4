// Request conversion: each part of a request, then the whole of it. See request_conversion.h.
#include "server/calls/conversion/request_conversion.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/request/request_validation.h"
#include "engine/request/sampling_limits.h"
#include "google/protobuf/unknown_field_set.h"
#include "server/process/random_id.h"

namespace fox {
namespace {

constexpr size_t kMaxRequestIdBytes = 256;
constexpr size_t kMaxCacheSaltBytes = 256;
constexpr uint32_t kMaxStreamInterval = 1024;
constexpr size_t kMaxStopBytes = 256;
constexpr int kMaxIdsToDetokenize = 1 << 20;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status NoTokenizer(const char* field) {
  return absl::FailedPreconditionError(absl::StrCat(field, ": the model has no tokenizer"));
}

// Unimplemented: a field was sent that the .proto file reserves. Reserved names stand in the order
// of the numbers there. `in` names the message.
absl::Status CheckReserved(const google::protobuf::Message& message, const char* in) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    int name = 0;
    for (int r = 0; r < type.reserved_range_count(); ++r) {
      const auto [start, end] =
          std::pair(type.reserved_range(r)->start, type.reserved_range(r)->end);
      const int number = unknown.field(i).number();
      if (number >= start && number < end) {
        return absl::UnimplementedError(
            absl::StrCat(in, type.reserved_name(name + number - start), " is not supported"));
      }
      name += end - start;
    }
  }
  return absl::OkStatus();
}

// `bytes`: of the text `field` and of the texts before it.
absl::Status CheckLength(size_t bytes, absl::string_view field, const ConversionContext& context) {
  if (bytes > context.max_prompt_bytes) {
    return Invalid(absl::StrCat(field, ": ", bytes, " bytes are more than the limit of ",
                                context.max_prompt_bytes));
  }
  return absl::OkStatus();
}

template <class T>
void SortUnique(std::vector<T>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

absl::Status ConvertNames(const v1::GenerateRequest& request, const ConversionContext& context,
                          GenerationSpec* spec) {
  absl::Status status = CheckModelName(request.model(), context);
  absl::StatusOr<std::string> id = CheckRequestId(request.request_id());
  status.Update(id.status());
  if (status.ok()) spec->request_id = *std::move(id);
  return status;
}

// Tokenizes a conversation, whose tools ConvertGrammar has checked.
absl::StatusOr<std::vector<int32_t>> ConvertMessages(const v1::ChatMessages& in,
                                                     const ConversionContext& context) {
  if (context.chat == nullptr) {
    return absl::FailedPreconditionError("messages: the model has no chat format; send text");
  }
  std::vector<ChatMessage> messages;
  size_t bytes = 0;
  absl::Status status;
  for (const v1::ChatMessage& turn : in.turns()) {
    const std::string field = absl::StrCat("messages[", messages.size(), "].content");
    bytes += turn.content().size();
    status.Update(CheckLength(bytes, field, context));
    messages.push_back({turn.role(), turn.content()});
    for (const v1::ToolCall& call : turn.tool_calls()) {
      bytes += call.name().size() + call.arguments().size();
      status.Update(CheckLength(bytes, field, context));
      messages.back().calls.push_back({call.name(), call.arguments()});
    }
  }
  if (!status.ok()) return status;
  const bool open = in.continue_final_message();
  const bool answer = in.has_add_generation_prompt() ? in.add_generation_prompt() : !open;
  const std::vector<std::string> tools(in.tools().begin(), in.tools().end());
  const auto thinking =
      in.has_enable_thinking() ? std::optional(in.enable_thinking()) : std::nullopt;
  return context.chat->Encode(*context.tokenizer, messages, answer, open, tools, thinking);
}

absl::StatusOr<std::vector<int32_t>> ConvertPrompt(const v1::GenerateRequest& request,
                                                   const ConversionContext& context) {
  std::vector<int32_t> prompt;
  const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
  if (request.has_text()) {
    if (request.text().empty()) return Invalid("text: the prompt is empty");
    absl::StatusOr<std::vector<int32_t>> ids =
        TokenizeText(request.text(), add_special, "text", context);
    if (!ids.ok()) return ids.status();
    prompt = *std::move(ids);
  } else if (request.has_token_ids()) {
    absl::Status status =
        ConvertIds(request.token_ids().ids(), "token_ids.ids", context.limits.vocab_size, &prompt);
    if (!status.ok()) return status;
    if (context.add_bos_to_ids && add_special && !prompt.empty()) {
      const int32_t bos = context.tokenizer->info().prefix.front();
      if (prompt.front() != bos) prompt.insert(prompt.begin(), bos);
    }
  }
  if (request.has_messages()) {
    absl::StatusOr<std::vector<int32_t>> ids = ConvertMessages(request.messages(), context);
    if (!ids.ok()) return ids.status();
    prompt = *std::move(ids);
  }
  if (prompt.empty()) return Invalid("prompt: must be set and not be empty");
  if (request.has_truncate_prompt_tokens()) {
    const size_t keep = request.truncate_prompt_tokens();
    if (keep == 0) return Invalid("truncate_prompt_tokens: must be at least 1");
    if (prompt.size() > keep)
      prompt.erase(prompt.begin(), prompt.end() - static_cast<int64_t>(keep));
  }
  return prompt;
}

absl::Status ConvertSampling(const v1::Sampling& in, const ConversionContext& context,
                             SamplingParams* out) {
  const SamplingDefaults& defaults = context.defaults;
  const int32_t vocab_size = context.limits.vocab_size;
  out->temperature = in.has_temperature() ? in.temperature() : defaults.temperature;
  out->top_p = in.has_top_p() ? in.top_p() : defaults.top_p;
  out->min_p = in.has_min_p() ? in.min_p() : defaults.min_p;
  out->presence_penalty = in.presence_penalty();
  out->frequency_penalty = in.frequency_penalty();
  out->repetition_penalty =
      in.has_repetition_penalty() ? in.repetition_penalty() : defaults.repetition_penalty;
  if (out->temperature == 0) out->temperature = 0;  // -0 is 0
  const uint32_t top_k = in.has_top_k() ? in.top_k() : defaults.top_k;
  out->top_k = static_cast<int32_t>(std::min(top_k, static_cast<uint32_t>(vocab_size)));
  out->seed = in.has_seed() ? in.seed() : RandomSeed();
  std::map<uint32_t, float> biases;  // the message's map has another order each time
  for (const auto& [id, bias] : in.logit_bias()) biases[id] = bias;
  for (const auto& [id, bias] : biases) {
    if (id >= static_cast<uint32_t>(vocab_size)) {
      return Invalid(absl::StrCat("sampling.logit_bias: id ", id, " is not in the vocabulary of ",
                                  vocab_size));
    }
    out->logit_bias.emplace_back(static_cast<int32_t>(id), bias);
  }
  absl::Status status = ConvertIds(in.allowed_token_ids(), "sampling.allowed_token_ids", vocab_size,
                                   &out->allowed_token_ids);
  SortUnique(&out->allowed_token_ids);
  const absl::Status valid = ValidateSampling(*out, context.engine, vocab_size);
  status.Update(absl::Status(valid.code(), absl::StrCat("sampling.", valid.message())));
  return status;
}

absl::Status ConvertStopping(const v1::GenerateRequest& request, const ConversionContext& context,
                             bool score, StopParams* out) {
  const v1::Stopping& in = request.stopping();
  const uint32_t most = request.has_messages() ? INT32_MAX : context.defaults.max_tokens;
  const uint32_t max_tokens = in.has_max_tokens() ? in.max_tokens() : most;
  if (max_tokens == 0 && !score) {
    return Invalid("stopping.max_tokens: must be at least 1; Score generates nothing");
  }
  if (in.has_max_tokens() && in.min_tokens() > max_tokens) {
    return Invalid("stopping.min_tokens: must be at most max_tokens");
  }
  out->max_tokens = static_cast<int32_t>(std::min<uint32_t>(max_tokens, INT32_MAX));
  out->min_tokens = std::min(static_cast<int32_t>(std::min<uint32_t>(in.min_tokens(), INT32_MAX)),
                             out->max_tokens);
  out->ignore_eos = in.ignore_eos();
  absl::Status status = CheckCount("stopping.stop_token_ids",
                                   static_cast<size_t>(in.stop_token_ids_size()), kMaxStopTokenIds);
  status.Update(ConvertIds(in.stop_token_ids(), "stopping.stop_token_ids",
                           context.limits.vocab_size, &out->stop_token_ids));
  if (!in.ignore_eos()) {  // config.json's are the engine's own
    out->stop_token_ids.insert(out->stop_token_ids.end(), context.defaults.eos_token_ids.begin(),
                               context.defaults.eos_token_ids.end());
  }
  SortUnique(&out->stop_token_ids);
  return status;
}

// Adds the token or text that a model with a chat format writes when its turn is over.
void StopAtTurnEnd(const ChatFormat& chat, StopParams* out, GenerationSpec* spec) {
  if (chat.stop_id().has_value()) out->stop_token_ids.push_back(*chat.stop_id());
  SortUnique(&out->stop_token_ids);
  if (!chat.stop_text().empty()) spec->stop.push_back(chat.stop_text());
}

absl::Status ConvertStopStrings(const v1::Stopping& in, std::vector<std::string>* out) {
  if (in.stop_size() > kMaxStops) return Invalid("stopping.stop: at most 16 strings");
  for (const std::string& stop : in.stop()) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return Invalid("stopping.stop: each string must have 1 to 256 bytes");
    }
    out->push_back(stop);
  }
  return absl::OkStatus();
}

absl::Status ConvertLogprobs(bool set, int32_t in, const char* field, int32_t most, int32_t* out) {
  *out = -1;
  if (!set) return absl::OkStatus();
  if (in < 0 || in > most) return Invalid(absl::StrCat(field, ": must be in [0, ", most, "]"));
  *out = in;
  return absl::OkStatus();
}

absl::Status ConvertLogprobIds(const google::protobuf::RepeatedField<uint32_t>& in,
                               const char* field, int32_t vocab_size, std::vector<int32_t>* out) {
  absl::Status status = CheckCount(field, static_cast<size_t>(in.size()), kMaxLogprobTokenIds);
  status.Update(ConvertIds(in, field, vocab_size, out));
  return status;
}

absl::Status ConvertAcp(const v1::AcpOptions& acp, const EngineOptions& engine, Request* out) {
  if (acp.has_log_tolerance()) {
    const float tolerance = acp.log_tolerance();
    if (engine.acp == AcpMode::kOff) return Invalid("acp.log_tolerance: the server's ACP is off");
    if (!std::isfinite(tolerance) || !(tolerance <= engine.log_tolerance)) {
      return Invalid(absl::StrCat("acp.log_tolerance: must be finite and at most the server's ",
                                  engine.log_tolerance));
    }
    out->log_tolerance = tolerance;
  }
  if (!acp.has_mode() || acp.mode() == v1::ACP_MODE_UNSPECIFIED) return absl::OkStatus();
  if (acp.mode() == v1::OFF) {
    out->log_tolerance = -std::numeric_limits<double>::infinity();
  } else if (acp.mode() != ToWire(engine.acp)) {
    return Invalid(absl::StrCat("acp.mode: must be OFF or the server's, ",
                                v1::AcpMode_Name(ToWire(engine.acp))));
  }
  return absl::OkStatus();
}

absl::Status ConvertScheduling(const v1::GenerateRequest& request, const ConversionContext& context,
                               GenerationSpec* spec, Request* out) {
  if (request.has_queue_timeout_ms()) {
    if (request.queue_timeout_ms() == 0) return Invalid("queue_timeout_ms: must be at least 1");
    spec->queue_timeout_ms = request.queue_timeout_ms();
  }
  if (request.priority() != 0 && !context.engine.priority_scheduling) {
    return Invalid("priority: the server's scheduling policy is fcfs");
  }
  out->priority = request.priority();
  return ConvertAcp(request.acp(), context.engine, out);
}

absl::Status ConvertOutput(const v1::Output& output, const ConversionContext& context,
                           GenerationSpec* spec, SamplingParams* sampling) {
  const bool tokenizer = context.tokenizer != nullptr;
  spec->text = output.has_text() ? output.text() : tokenizer;
  spec->token_ids = output.has_token_ids() ? output.token_ids() : !tokenizer;
  if (spec->text && !tokenizer) return NoTokenizer("output.text");
  spec->echo = output.echo();
  spec->skip_special = !output.has_skip_special_tokens() || output.skip_special_tokens();
  spec->perf = output.perf_metrics();
  spec->acp_stats = output.acp_stats();
  spec->windows = output.acp_windows();
  spec->logprobs = output.has_logprobs();
  spec->stream_interval = context.stream_interval;
  if (output.has_stream_interval()) {
    if (output.stream_interval() < 1 || output.stream_interval() > kMaxStreamInterval) {
      return Invalid("output.stream_interval: must be in [1, 1024]");
    }
    spec->stream_interval = static_cast<int32_t>(output.stream_interval());
  }
  const int32_t most = context.engine.max_logprobs;
  absl::Status status = ConvertLogprobs(output.has_logprobs(), output.logprobs(), "output.logprobs",
                                        most, &sampling->logprobs);
  status.Update(ConvertLogprobs(output.has_prompt_logprobs(), output.prompt_logprobs(),
                                "output.prompt_logprobs", most, &sampling->prompt_logprobs));
  if (!output.logprob_token_ids().empty() && !output.has_logprobs() &&
      !output.has_prompt_logprobs()) {
    status.Update(Invalid("output.logprob_token_ids: needs logprobs or prompt_logprobs"));
  }
  status.Update(ConvertLogprobIds(output.logprob_token_ids(), "output.logprob_token_ids",
                                  context.limits.vocab_size, &sampling->logprob_token_ids));
  return status;
}

// Makes n copies that differ by seed; the prompt's log-probabilities are asked for once.
void Replicate(const Request& first, uint32_t n, GenerationSpec* spec) {
  for (uint32_t i = 0; i < n; ++i) {
    spec->sequences.push_back(first);
    spec->sequences.back().sampling.seed = first.sampling.seed + i;
    if (i > 0) spec->sequences.back().sampling.prompt_logprobs = -1;
  }
}

}  // namespace

v1::AcpMode ToWire(AcpMode mode) {
  return mode == AcpMode::kOff ? v1::OFF : mode == AcpMode::kPaper ? v1::PAPER : v1::CERTIFIED;
}

absl::StatusOr<std::string> CheckRequestId(const std::string& request_id) {
  if (request_id.empty()) return RandomUuid();
  const bool printable = std::all_of(request_id.begin(), request_id.end(),
                                     [](char c) { return c > 0x20 && c < 0x7f; });
  if (request_id.size() > kMaxRequestIdBytes || !printable) {
    return Invalid("request_id: must be at most 256 printable ASCII bytes without spaces");
  }
  return request_id;
}

absl::Status CheckModelName(const std::string& model, const ConversionContext& context) {
  if (model.empty() || model == context.served_model_name) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("model: not served here; the model is ", context.served_model_name));
}

absl::Status ConvertIds(const google::protobuf::RepeatedField<uint32_t>& in, const char* field,
                        int32_t vocab_size, std::vector<int32_t>* out) {
  out->reserve(static_cast<size_t>(in.size()));
  for (uint32_t id : in) {
    if (id >= static_cast<uint32_t>(vocab_size)) {
      return Invalid(absl::StrCat(field, ": id ", id, " is not in the vocabulary of ", vocab_size));
    }
    out->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TokenizeText(const std::string& text, bool add_special,
                                                  const char* field,
                                                  const ConversionContext& context) {
  if (context.tokenizer == nullptr) return NoTokenizer(field);
  absl::Status status = CheckLength(text.size(), field, context);
  if (!status.ok()) return status;
  return context.tokenizer->Encode(text, add_special);
}

absl::StatusOr<std::vector<int32_t>> TokenizeMessages(const v1::ChatMessages& messages,
                                                      const ConversionContext& context) {
  v1::GenerateRequest request;
  *request.mutable_messages() = messages;
  GenerationSpec unused;
  absl::Status status = ConvertGrammar(request, context, &unused);
  if (!status.ok()) return status;
  return ConvertMessages(messages, context);
}

absl::StatusOr<std::string> DetokenizeIds(const google::protobuf::RepeatedField<uint32_t>& ids,
                                          bool skip_special, const char* field,
                                          const ConversionContext& context) {
  if (context.tokenizer == nullptr) return NoTokenizer(field);
  if (ids.size() > kMaxIdsToDetokenize) {
    return Invalid(absl::StrCat(field, ": at most ", kMaxIdsToDetokenize, " ids"));
  }
  std::vector<int32_t> checked;
  absl::Status status = ConvertIds(ids, field, context.tokenizer->info().vocab_size, &checked);
  if (!status.ok()) return status;
  return Detokenize(*context.tokenizer, checked, skip_special);
}

absl::StatusOr<GenerationSpec> ConvertGenerate(const v1::GenerateRequest& request, bool stream,
                                               const ConversionContext& context, bool score) {
  GenerationSpec spec;
  Request first;
  absl::Status status = ConvertNames(request, context, &spec);
  status.Update(CheckReserved(request, ""));
  status.Update(CheckReserved(request.sampling(), "sampling."));
  status.Update(ConvertSampling(request.sampling(), context, &first.sampling));
  status.Update(ConvertGrammar(request, context, &spec));
  status.Update(ConvertStopping(request, context, score, &first.stop));
  status.Update(ConvertStopStrings(request.stopping(), &spec.stop));
  status.Update(ConvertOutput(request.output(), context, &spec, &first.sampling));
  status.Update(ConvertScheduling(request, context, &spec, &first));
  if (request.cache().cache_salt().size() > kMaxCacheSaltBytes) {
    status.Update(Invalid("cache.cache_salt: at most 256 bytes"));
  }
  if (!status.ok()) return status;
  if (request.has_messages() && context.chat != nullptr && !request.stopping().ignore_eos()) {
    StopAtTurnEnd(*context.chat, &first.stop, &spec);
  }
  if (!spec.stop.empty() && context.tokenizer == nullptr) return NoTokenizer("stopping.stop");
  if (spec.windows && !stream) return Invalid("output.acp_windows: only in a stream");
  if (request.acp().audit()) {
    if (score) return Invalid("acp.audit: Score has no answer to audit");
    if (context.engine.acp == AcpMode::kOff || request.acp().mode() == v1::OFF) {
      return Invalid("acp.audit: nothing is pruned");
    }
    spec.audit = spec.acp_stats = true;
  }
  spec.include_stop = request.stopping().include_stop_str_in_output();
  const uint32_t n = request.sampling().has_n() ? request.sampling().n() : 1;
  if (n < 1 || n > 16) return Invalid("sampling.n: must be in [1, 16]");

  absl::StatusOr<std::vector<int32_t>> prompt = ConvertPrompt(request, context);
  if (!prompt.ok()) return prompt.status();
  const int64_t room = context.limits.max_model_len - static_cast<int64_t>(prompt->size());
  const int64_t least = score ? 0 : 1;
  if (room < least) {
    // Clients recognise these words, Claude Code also "tokens > ", and send less or ask another
    // model.
    return absl::OutOfRangeError(absl::StrCat(
        request.has_messages() ? "messages: " : "prompt: ", prompt->size(), " tokens > ",
        context.limits.max_model_len - least, " maximum. This model's maximum context length is ",
        context.limits.max_model_len, " tokens"));
  }
  first.stop.max_tokens = static_cast<int32_t>(std::min<int64_t>(first.stop.max_tokens, room));
  first.stop.min_tokens = std::min(first.stop.min_tokens, first.stop.max_tokens);
  if (spec.echo && spec.text) {
    spec.prompt_text = EchoesSentText(request, request)
                           ? request.text()
                           : Detokenize(*context.tokenizer, *prompt, spec.skip_special);
  }
  first.prompt = *std::move(prompt);
  first.cache_salt = request.cache().cache_salt();
  first.bypass_prefix_cache = request.cache().bypass_prefix_cache();
  first.report_windows = spec.windows;
  // Tokens that wait for a full interval are not the reader's fault: they come on top of the
  // window.
  if (stream) first.flow_window = context.stream_window + spec.stream_interval;
  Replicate(first, n, &spec);
  return spec;
}

absl::StatusOr<GenerationSpec> ConvertScore(const v1::ScoreRequest& request,
                                            const ConversionContext& context) {
  v1::GenerateRequest generate;
  generate.set_request_id(request.request_id());
  generate.set_model(request.model());
  if (request.has_text()) generate.set_text(request.text());
  if (request.has_token_ids()) *generate.mutable_token_ids() = request.token_ids();
  generate.mutable_stopping()->set_max_tokens(0);
  v1::Output& output = *generate.mutable_output();
  output.set_text(false);
  output.set_echo(true);  // ScoreResponse repeats the ids
  output.set_prompt_logprobs(request.logprobs());
  *output.mutable_logprob_token_ids() = request.logprob_token_ids();
  output.set_perf_metrics(request.perf_metrics());
  output.set_acp_stats(request.acp_stats());
  generate.set_priority(request.priority());
  if (request.has_queue_timeout_ms()) generate.set_queue_timeout_ms(request.queue_timeout_ms());
  *generate.mutable_acp() = request.acp();
  if (request.has_add_special_tokens()) {
    generate.set_add_special_tokens(request.add_special_tokens());
  }
  if (request.has_truncate_prompt_tokens()) {
    generate.set_truncate_prompt_tokens(request.truncate_prompt_tokens());
  }
  absl::StatusOr<GenerationSpec> spec =
      ConvertGenerate(generate, /*stream=*/false, context, /*score=*/true);
  if (spec.ok()) return spec;
  absl::string_view message = spec.status().message();
  if (absl::ConsumePrefix(&message, "output.")) absl::ConsumePrefix(&message, "prompt_");
  return absl::Status(spec.status().code(), message);
}

}  // namespace fox
