// VllmCall: see vllm_call.h.
#include "server/rpc/vllm_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using WireIds = google::protobuf::RepeatedField<uint32_t>;

constexpr int64_t kMaxAnswerBytes = 4 << 20;  // that a gRPC client takes unless told otherwise
constexpr int32_t kMaxStreamInterval = 64;    // tokens of a chunk, which has to fit, too

// Bytes of a token in an answer, at most: its id, then its log-probability and those beside it.
int64_t BytesOfToken(const v1::Output& output) {
  if (!output.has_logprobs()) return 5;
  return 5 + 9 + 8 + 9 * int64_t{output.logprobs()};
}

const char* NameOf(v1::FinishReason reason) {
  return reason == v1::LENGTH ? "length" : reason == v1::ABORT ? "abort" : "stop";
}

bool StartsWith(const WireIds& ids, const std::vector<int32_t>& prefix) {
  return ids.size() >= static_cast<int>(prefix.size()) &&
         std::equal(prefix.begin(), prefix.end(), ids.begin(),
                    [](int32_t a, uint32_t b) { return static_cast<uint32_t>(a) == b; });
}

absl::Status TranslateSampling(const vllm_wire::SamplingParams& in, v1::Sampling* out) {
  if (in.has_temperature()) out->set_temperature(in.temperature());
  if (in.top_p() != 0) out->set_top_p(in.top_p());
  if (in.top_k() != 0) out->set_top_k(in.top_k());
  if (in.min_p() != 0) out->set_min_p(in.min_p());
  if (in.frequency_penalty() != 0) out->set_frequency_penalty(in.frequency_penalty());
  if (in.presence_penalty() != 0) out->set_presence_penalty(in.presence_penalty());
  if (in.repetition_penalty() != 0) out->set_repetition_penalty(in.repetition_penalty());
  if (in.has_seed()) out->set_seed(static_cast<uint64_t>(int64_t{in.seed()}));
  if (in.n() != 0) out->set_n(in.n());
  for (const auto& [id, bias] : in.logit_bias()) {
    if (id < 0) {
      return absl::InvalidArgumentError(absl::StrCat("logit_bias: id ", id, " is below 0"));
    }
    (*out->mutable_logit_bias())[static_cast<uint32_t>(id)] = bias;
  }
  return absl::OkStatus();
}

void TranslateStopping(vllm_wire::SamplingParams* in, v1::Stopping* out) {
  if (in->has_max_tokens()) out->set_max_tokens(in->max_tokens());
  if (in->min_tokens() != 0) out->set_min_tokens(in->min_tokens());
  out->mutable_stop()->Swap(in->mutable_stop());
  out->mutable_stop_token_ids()->Swap(in->mutable_stop_token_ids());
  out->set_ignore_eos(in->ignore_eos());
  out->set_include_stop_str_in_output(true);  // the gateway cuts what it shows
}

void AddLogprobs(const v1::TokenDelta& delta, vllm_wire::OutputLogProbs* out) {
  for (const v1::TokenLogprobs& position : delta.logprobs()) {
    out->add_token_logprobs(position.token().logprob());
    out->add_token_ids(position.token().token_id());
    if (position.top().empty()) continue;
    vllm_wire::TopLogProbs* top = out->add_top_logprobs();
    for (const v1::TokenLogprob& alternative : position.top()) {
      top->add_values(alternative.logprob());
      top->add_token_ids(alternative.token_id());
    }
  }
}

}  // namespace

VllmCall::VllmCall(const ConversionContext& context)
    : context_(context),
      gateway_(context.tokenizer == nullptr || &context.tokenizer->Unescaped() == context.tokenizer
                   ? nullptr
                   : &context.tokenizer->Unescaped()) {}

absl::StatusOr<GenerationSpec> VllmCall::Convert(vllm_wire::GenerateRequest message) {
  stream_ = message.stream();
  absl::StatusOr<v1::GenerateRequest> request = Translate(&message);
  if (!request.ok()) return request.status();
  absl::StatusOr<GenerationSpec> spec = ConvertGenerate(*request, stream_, context_);
  if (!spec.ok()) return spec.status();
  const int64_t tokens = spec->sequences.front().stop.max_tokens;
  if (!stream_ && tokens * BytesOfToken(request->output()) > kMaxAnswerBytes) {
    return absl::OutOfRangeError(absl::StrCat(
        "max_tokens: ", tokens,
        " tokens with what was asked of each may not fit one answer of 4 MiB; ask for a stream"));
  }
  return spec;
}

absl::StatusOr<v1::GenerateRequest> VllmCall::Translate(vllm_wire::GenerateRequest* in) const {
  vllm_wire::SamplingParams* params = in->mutable_sampling_params();
  if (params->constraint_case() != vllm_wire::SamplingParams::CONSTRAINT_NOT_SET) {
    return absl::UnimplementedError("structured output is not supported");
  }
  v1::GenerateRequest out;
  out.set_request_id(in->request_id());
  if (params->has_truncate_prompt_tokens()) {
    const int32_t keep = std::max(0, params->truncate_prompt_tokens());
    out.set_truncate_prompt_tokens(static_cast<uint32_t>(keep));
  }
  absl::Status status = TranslateSampling(*params, out.mutable_sampling());
  status.Update(TranslateOutput(*params, out.mutable_output()));
  TranslateStopping(params, out.mutable_stopping());
  status.Update(TranslatePrompt(in, &out));
  if (!status.ok()) return status;
  return out;
}

absl::Status VllmCall::TranslateOutput(const vllm_wire::SamplingParams& in, v1::Output* out) const {
  if (in.has_prompt_logprobs()) {
    return absl::UnimplementedError("prompt_logprobs is not supported");
  }
  out->set_text(gateway_ != nullptr);
  out->set_token_ids(gateway_ == nullptr);
  out->set_skip_special_tokens(in.skip_special_tokens());
  out->set_stream_interval(
      static_cast<uint32_t>(std::min(context_.stream_interval, kMaxStreamInterval)));
  if (!in.has_logprobs()) return absl::OkStatus();
  if (gateway_ != nullptr) {
    return absl::UnimplementedError("logprobs: the model's tokens are not those of the text");
  }
  out->set_logprobs(in.logprobs());
  return absl::OkStatus();
}

absl::Status VllmCall::TranslatePrompt(vllm_wire::GenerateRequest* in,
                                       v1::GenerateRequest* out) const {
  if (in->has_text()) {
    out->mutable_text()->swap(*in->mutable_text());
    return absl::OkStatus();
  }
  WireIds* ids = out->mutable_token_ids()->mutable_ids();
  ids->Swap(in->mutable_tokenized()->mutable_input_ids());
  if (ids->empty() || context_.tokenizer == nullptr) return absl::OkStatus();
  const std::vector<int32_t>& prefix = context_.tokenizer->info().prefix;
  const bool there = StartsWith(*ids, prefix);
  if (gateway_ == nullptr) {
    if (there) return absl::OkStatus();
    for (int32_t id : prefix) ids->Add(static_cast<uint32_t>(id));
    std::rotate(ids->begin(), ids->end() - static_cast<int64_t>(prefix.size()), ids->end());
    return absl::OkStatus();
  }
  std::string text;
  for (int i = there ? static_cast<int>(prefix.size()) : 0; i < ids->size(); ++i) {
    if (ids->Get(i) >= static_cast<uint32_t>(gateway_->info().vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("input_ids: id ", ids->Get(i), " is not in the vocabulary"));
    }
    text += gateway_->TokenBytes(static_cast<int32_t>(ids->Get(i)), /*skip_special=*/false);
  }
  out->set_text(std::move(text));
  return absl::OkStatus();
}

bool VllmCall::Answer(v1::GenerateDelta event, vllm_wire::GenerateResponse* out) {
  if (event.has_prompt()) prompt_tokens_ = event.prompt().prompt_tokens();
  if (event.has_delta() && stream_) {
    AnswerDelta(std::move(*event.mutable_delta()), out->mutable_chunk());
    return true;
  }
  if (event.has_delta()) Collect(event.delta());
  if (!event.has_finish()) return false;
  AnswerFinish(event.finish(), out->mutable_complete());
  return true;
}

void VllmCall::AnswerDelta(v1::TokenDelta delta, vllm_wire::GenerateStreamChunk* out) const {
  out->set_index(delta.index());
  out->set_prompt_tokens(prompt_tokens_);
  if (!delta.logprobs().empty()) AddLogprobs(delta, out->mutable_output_logprobs());
  out->mutable_token_ids()->Swap(delta.mutable_token_ids());
  AddIds(delta.text(), out->mutable_token_ids());
  out->set_completion_tokens(static_cast<uint32_t>(out->token_ids_size()));
}

void VllmCall::Collect(const v1::TokenDelta& delta) {
  if (collected_.size() <= delta.index()) collected_.resize(delta.index() + 1);
  Collected& sequence = collected_[delta.index()];
  sequence.text += delta.text();
  sequence.complete.mutable_output_ids()->MergeFrom(delta.token_ids());
  if (!delta.logprobs().empty()) {
    AddLogprobs(delta, sequence.complete.mutable_output_logprobs());
  }
}

void VllmCall::AnswerFinish(const v1::Finish& finish, vllm_wire::GenerateComplete* out) {
  if (finish.index() < collected_.size()) {
    Collected& sequence = collected_[finish.index()];
    out->Swap(&sequence.complete);
    AddIds(sequence.text, out->mutable_output_ids());
  }
  out->set_index(finish.index());
  out->set_finish_reason(NameOf(finish.reason()));
  out->set_prompt_tokens(prompt_tokens_);
  out->set_completion_tokens(finish.usage().completion_tokens());
  out->set_cached_tokens(finish.usage().cached_tokens());
  if (finish.has_stop_token_id()) out->set_matched_token_id(finish.stop_token_id());
  if (finish.has_stop_str()) out->set_matched_stop_str(finish.stop_str());
}

void VllmCall::AddIds(const std::string& text, WireIds* ids) const {
  if (text.empty()) return;
  const absl::StatusOr<std::vector<int32_t>> encoded =
      gateway_->Encode(text, /*add_special_tokens=*/false);
  if (!encoded.ok()) return;  // never: texts that the server makes are UTF-8
  for (int32_t id : *encoded) ids->Add(static_cast<uint32_t>(id));
}

absl::Status VllmCall::EndOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return absl::FailedPreconditionError(status.message());
    case absl::StatusCode::kCancelled:
      return absl::AbortedError(status.message());
    default:
      return status;
  }
}

}  // namespace fox
