// Messages of vllm.grpc.engine to what the engine takes: what is accepted is what fox.v1 makes of
// the same request. The first byte chooses the message's bytes or fields that the input chooses,
// and a tokenizer that is the gateway's too, one that is not, or none.
#include <string>

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
