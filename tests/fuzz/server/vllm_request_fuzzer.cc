// Messages of vllm.grpc.engine to engine requests: an accepted request equals fox.v1's conversion
// of the same request, and a run's results are returned, as a stream or at once. The first byte
// chooses the message's bytes or fields that the input chooses, and a tokenizer that is also the
// gateway's, one that is not, or none.
#include <algorithm>
#include <string>
#include <vector>

#include "server/rpc/vllm_call.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/server/message_filler.h"
#include "tests/fuzz/server/request_world.h"

namespace fox {
namespace {

// What an accepted request says in fox.v1's words, as far as no text needs translating.
v1::GenerateRequest Same(const vllm_wire::GenerateRequest& in) {
  v1::GenerateRequest out;
  const vllm_wire::SamplingParams& params = in.sampling_params();
  v1::Sampling* sampling = out.mutable_sampling();
  if (params.has_temperature()) sampling->set_temperature(params.temperature());
  if (params.top_p() != 0) sampling->set_top_p(params.top_p());
  if (params.top_k() != 0) sampling->set_top_k(params.top_k());
  if (params.min_p() != 0) sampling->set_min_p(params.min_p());
  if (params.repetition_penalty() != 0) {
    sampling->set_repetition_penalty(params.repetition_penalty());
  }
  sampling->set_frequency_penalty(params.frequency_penalty());
  sampling->set_presence_penalty(params.presence_penalty());
  if (params.has_seed()) sampling->set_seed(static_cast<uint64_t>(int64_t{params.seed()}));
  if (params.n() != 0) sampling->set_n(params.n());
  for (const auto& [id, bias] : params.logit_bias()) {
    (*sampling->mutable_logit_bias())[static_cast<uint32_t>(id)] = bias;
  }
  v1::Stopping* stopping = out.mutable_stopping();
  if (params.has_max_tokens()) stopping->set_max_tokens(params.max_tokens());
  stopping->set_min_tokens(params.min_tokens());
  *stopping->mutable_stop() = params.stop();
  *stopping->mutable_stop_token_ids() = params.stop_token_ids();
  stopping->set_ignore_eos(params.ignore_eos());
  stopping->set_include_stop_str_in_output(true);
  out.mutable_output()->set_text(false);
  out.mutable_output()->set_token_ids(true);
  out.mutable_output()->set_skip_special_tokens(params.skip_special_tokens());
  if (params.has_logprobs()) out.mutable_output()->set_logprobs(params.logprobs());
  if (params.has_truncate_prompt_tokens()) {
    out.set_truncate_prompt_tokens(static_cast<uint32_t>(params.truncate_prompt_tokens()));
  }
  if (in.has_text()) out.set_text(in.text());
  return out;
}

void AddLogprobs(uint32_t alternatives, v1::TokenDelta* delta) {
  v1::TokenLogprobs* position = delta->add_logprobs();
  position->mutable_token()->set_token_id(97);
  for (uint32_t i = 0; i < alternatives; ++i) position->add_top()->set_token_id(i);
}

// One token of text or its id, then the end, for each sequence of an accepted request.
void CheckAnswers(VllmCall& call, const GenerationSpec& spec, bool stream,
                  const ConversionContext& context) {
  const auto prompt = static_cast<uint32_t>(spec.sequences.front().prompt.size());
  std::vector<uint32_t> ids = {97};
  if (spec.text) {
    const auto text = *context.tokenizer->Unescaped().Encode("ab", false);
    ids.assign(text.begin(), text.end());
  }
  v1::GenerateDelta begin;
  begin.mutable_prompt()->set_prompt_tokens(prompt);
  vllm_wire::GenerateResponse none;
  FOX_CHECK(!call.Answer(begin, &none));
  for (uint32_t i = 0; i < spec.sequences.size(); ++i) {
    v1::GenerateDelta token, end;
    token.mutable_delta()->set_index(i);
    if (spec.text) token.mutable_delta()->set_text("ab");
    if (spec.token_ids) token.mutable_delta()->add_token_ids(97);
    if (spec.logprobs) AddLogprobs(i % 2, token.mutable_delta());
    vllm_wire::GenerateResponse chunk, complete;
    FOX_CHECK(call.Answer(token, &chunk) == stream);
    const auto& told = chunk.chunk().token_ids();
    if (stream) FOX_CHECK(std::equal(told.begin(), told.end(), ids.begin(), ids.end()));
    if (stream) FOX_CHECK(chunk.chunk().index() == i && chunk.chunk().prompt_tokens() == prompt);
    end.mutable_finish()->set_index(i);
    end.mutable_finish()->set_reason(static_cast<v1::FinishReason>(1 + i % 3));
    if (i % 3 == 1) end.mutable_finish()->set_stop_token_id(98);
    if (i % 3 == 2) end.mutable_finish()->set_stop_str("b");
    FOX_CHECK(call.Answer(end, &complete) && complete.complete().index() == i);
    const auto& all = complete.complete().output_ids();
    FOX_CHECK(stream ? all.empty() : std::equal(all.begin(), all.end(), ids.begin(), ids.end()));
    const auto& logprobs =
        stream ? chunk.chunk().output_logprobs() : complete.complete().output_logprobs();
    FOX_CHECK(logprobs.token_ids_size() == (spec.logprobs ? 1 : 0));
    FOX_CHECK(logprobs.top_logprobs_size() == (spec.logprobs && i % 2 == 1 ? 1 : 0));
  }
}

void Fuzz(FuzzInput in) {
  static const RequestWorld worlds[] = {RequestWorld(true), RequestWorld(true, /*escaped=*/true),
                                        RequestWorld(false)};
  const size_t choice = in.Byte();
  const size_t world = (choice >> 1) % 3;
  const ConversionContext& context = worlds[world].context;
  vllm_wire::GenerateRequest request;
  if ((choice & 1) != 0) {
    if (!request.ParseFromString(in.Rest())) return;
  } else {
    MessageFiller(in).Fill(&request);
    const std::string bytes = request.SerializeAsString();
    if (!request.ParseFromString(bytes)) return;
  }
  VllmCall call(context);
  const absl::StatusOr<GenerationSpec> spec = call.Convert(request);
  if (!spec.ok()) {
    CheckRefusal(spec.status());
    return CheckRefusal(VllmCall::EndOf(spec.status()));
  }
  CheckSpec(*spec, context);
  FOX_CHECK(spec->include_stop && !spec->echo);
  CheckAnswers(call, *spec, request.stream(), context);
  if (world == 1 || !request.has_text()) return;
  const absl::StatusOr<GenerationSpec> expected =
      ConvertGenerate(Same(request), request.stream(), context);
  FOX_CHECK(expected.ok());
  FOX_CHECK(SameWork(*spec, *expected, request.sampling_params().has_seed()));
}

}  // namespace
}  // namespace fox

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  google::protobuf::SetLogHandler(nullptr);
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
