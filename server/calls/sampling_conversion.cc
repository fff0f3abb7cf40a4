// Sampling conversion: see sampling_conversion.h.
#include "server/calls/sampling_conversion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/sampling_limits.h"
#include "google/protobuf/unknown_field_set.h"
#include "server/process/random_id.h"

namespace fox {
namespace {

constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status UnknownId(const char* field, uint32_t id, int32_t vocab_size) {
  return Invalid(absl::StrCat(field, ": id ", id, " is not in the vocabulary of ", vocab_size));
}

template <class T>
void SortUnique(std::vector<T>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

absl::Status ConvertBias(const v1::Sampling& in, int32_t vocab_size, SamplingParams* out) {
  const char* const field = "sampling.logit_bias";
  absl::Status status =
      CheckCount(field, static_cast<size_t>(in.logit_bias().size()), kMaxLogitBiases);
  for (const auto& [id, bias] : in.logit_bias()) {
    if (!status.ok()) return status;
    if (id >= static_cast<uint32_t>(vocab_size)) return UnknownId(field, id, vocab_size);
    status = CheckRange(field, bias, kLogitBias);
    out->logit_bias.emplace_back(static_cast<int32_t>(id), bias);
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());  // a map has no order of its own
  return status;
}

struct ReservedField {
  int number;
  const char* name;
};

absl::Status CheckReserved(const google::protobuf::Message& message,
                           std::initializer_list<ReservedField> reserved) {
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    for (const ReservedField& field : reserved) {
      if (unknown.field(i).number() == field.number) {
        return absl::UnimplementedError(absl::StrCat(field.name, " is not supported"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReservedFields(const v1::GenerateRequest& request) {
  absl::Status status = CheckReserved(
      request, {{14, "lora_name"}, {15, "kv_transfer_params_json"}, {16, "session_id"}});
  status.Update(CheckReserved(request.sampling(), {{5, "sampling.typical_p"},
                                                   {13, "sampling.bad_words_ids"},
                                                   {20, "sampling.json_schema"},
                                                   {21, "sampling.regex"},
                                                   {22, "sampling.grammar"},
                                                   {23, "sampling.choice"},
                                                   {24, "sampling.json_object"}}));
  return status;
}

absl::Status ConvertSampling(const v1::Sampling& in, const SamplingDefaults& defaults,
                             int32_t vocab_size, SamplingParams* out) {
  out->temperature = in.has_temperature() ? in.temperature() : defaults.temperature;
  out->top_p = in.has_top_p() ? in.top_p() : defaults.top_p;
  out->min_p = in.has_min_p() ? in.min_p() : defaults.min_p;
  out->presence_penalty = in.presence_penalty();
  out->frequency_penalty = in.frequency_penalty();
  out->repetition_penalty =
      in.has_repetition_penalty() ? in.repetition_penalty() : defaults.repetition_penalty;
  absl::Status status = CheckRange("sampling.temperature", out->temperature, kTemperature);
  status.Update(CheckRange("sampling.top_p", out->top_p, kTopP));
  status.Update(CheckRange("sampling.min_p", out->min_p, kMinP));
  status.Update(CheckRange("sampling.presence_penalty", out->presence_penalty, kPresencePenalty));
  status.Update(
      CheckRange("sampling.frequency_penalty", out->frequency_penalty, kFrequencyPenalty));
  status.Update(
      CheckRange("sampling.repetition_penalty", out->repetition_penalty, kRepetitionPenalty));
  if (out->temperature == 0) out->temperature = 0;  // -0 is 0

  const uint32_t top_k = in.has_top_k() ? in.top_k() : defaults.top_k;
  out->top_k = static_cast<int32_t>(std::min(top_k, static_cast<uint32_t>(vocab_size)));
  out->seed = in.has_seed() ? in.seed() : RandomSeed();
  status.Update(ConvertBias(in, vocab_size, out));
  status.Update(ConvertIds(in.allowed_token_ids(), "sampling.allowed_token_ids", vocab_size,
                           &out->allowed_token_ids));
  SortUnique(&out->allowed_token_ids);
  return status;
}

absl::Status ConvertStopping(const v1::Stopping& in, const ConversionContext& context,
                             StopParams* out) {
  const uint32_t max_tokens = in.has_max_tokens() ? in.max_tokens() : context.defaults.max_tokens;
  if (max_tokens == 0) {
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

absl::Status ConvertStopStrings(const v1::Stopping& in, std::vector<std::string>* out) {
  if (in.stop_size() > kMaxStops) return Invalid("stopping.stop: at most 16 strings");
  for (const std::string& stop : in.stop()) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return Invalid("stopping.stop: each string must have 1 to 256 bytes");
    }
    if (stop.find('\0') != std::string::npos) {
      return Invalid("stopping.stop: contains a NUL character");
    }
    out->push_back(stop);
  }
  return absl::OkStatus();
}

absl::Status ConvertIds(const WireIds& in, const char* field, int32_t vocab_size,
                        std::vector<int32_t>* out) {
  out->reserve(static_cast<size_t>(in.size()));
  for (uint32_t id : in) {
    if (id >= static_cast<uint32_t>(vocab_size)) return UnknownId(field, id, vocab_size);
    out->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::Status ConvertLogprobs(bool set, int32_t in, const char* field, int32_t most, int32_t* out) {
  *out = -1;
  if (!set) return absl::OkStatus();
  if (in < 0 || in > most) {
    return Invalid(absl::StrCat(field, ": must be in [0, ", most, "]"));
  }
  *out = in;
  return absl::OkStatus();
}

absl::Status ConvertLogprobIds(const WireIds& in, const char* field, int32_t vocab_size,
                               std::vector<int32_t>* out) {
  absl::Status status = CheckCount(field, static_cast<size_t>(in.size()), kMaxLogprobTokenIds);
  status.Update(ConvertIds(in, field, vocab_size, out));
  return status;
}

}  // namespace fox
