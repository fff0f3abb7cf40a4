// VllmCall: one Generate of vllm.grpc.engine: its request becomes fox.v1's, events become its
// answers. Read vllm_service.h next.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/request_conversion.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace fox {

namespace vllm_wire = ::vllm::grpc::engine;

// A gateway speaks in ids of the tokenizer.json that it was given. Where that is not the model's
// own tokenizer (Tokenizer::Unescaped) the ids become text on the way in and out.
//
// Convert once, then Answer; one thread at a time. `context` must outlive the call.
class VllmCall {
 public:
  explicit VllmCall(const ConversionContext& context);

  // Errors: those of ConvertGenerate; Unimplemented for structured output and
  // log-probabilities of the prompt; OutOfRange for what may not fit one message.
  absl::StatusOr<GenerationSpec> Convert(vllm_wire::GenerateRequest message);

  // The message that tells of an event. False: none does.
  bool Answer(v1::GenerateDelta event, vllm_wire::GenerateResponse* out);

  // What a gateway is told at the end. It retries what was cancelled and shuts a worker out for
  // what is internal, so that one poisoned request could take every worker away.
  static absl::Status EndOf(const absl::Status& status);

 private:
  absl::StatusOr<v1::GenerateRequest> Translate(vllm_wire::GenerateRequest* message) const;
  absl::Status TranslatePrompt(vllm_wire::GenerateRequest* in, v1::GenerateRequest* out) const;
  absl::Status TranslateOutput(const vllm_wire::SamplingParams& in, v1::Output* out) const;
  // Text as ids of the gateway's tokenizer.
  void AddIds(const std::string& text, google::protobuf::RepeatedField<uint32_t>* ids) const;
  void AnswerDelta(v1::TokenDelta delta, vllm_wire::GenerateStreamChunk* out) const;
  void Collect(const v1::TokenDelta& delta);
  void AnswerFinish(const v1::Finish& finish, vllm_wire::GenerateComplete* out);

  const ConversionContext& context_;
  const Tokenizer* const gateway_;  // null: the gateway's tokenizer is the model's
  bool stream_ = false;
  uint32_t prompt_tokens_ = 0;
  // Without a stream: what each sequence has so far.
  struct Collected {
    std::string text;
    vllm_wire::GenerateComplete complete;
  };
  std::vector<Collected> collected_;
};

}  // namespace fox
