// GenerateService: see services.h.
#include <memory>

#include "server/calls/request_conversion.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

constexpr int kMaxAbortIds = 1024;

template <class Message>
absl::StatusOr<Message> Parse(grpc::ByteBuffer* bytes) {
  Message message;
  const absl::Status status = ParseMessage(*bytes, &message);
  bytes->Clear();
  if (!status.ok()) return status;
  return message;
}

// Generate and GenerateStream.
class GenerateMethod final : public GenerationMethod {
 public:
  using GenerationMethod::GenerationMethod;
  absl::StatusOr<GenerationSpec> Convert(grpc::ByteBuffer* bytes,
                                         const ConversionContext& context) const override {
    const auto request = Parse<v1::GenerateRequest>(bytes);
    if (!request.ok()) return request.status();
    return ConvertGenerate(*request, stream, context);
  }
  void Encode(Events events, grpc::ByteBuffer* out) const override;
};

void GenerateMethod::Encode(Events events, grpc::ByteBuffer* out) const {
  if (stream) return SerializeMessage(events.front(), out);
  v1::GenerateResponse response;
  for (v1::GenerateDelta& event : events) {
    if (event.has_prompt()) {
      if (!response.has_prompt()) response.mutable_prompt()->Swap(event.mutable_prompt());
      response.mutable_prompt()->MergeFrom(event.prompt());  // the first one's is empty now
      continue;
    }
    const uint32_t index = event.has_delta() ? event.delta().index() : event.finish().index();
    while (response.completions_size() <= static_cast<int>(index)) {
      const int next = response.completions_size();
      response.add_completions()->set_index(static_cast<uint32_t>(next));
    }
    v1::Completion* completion = response.mutable_completions(static_cast<int>(index));
    if (event.has_finish()) {
      completion->mutable_finish()->Swap(event.mutable_finish());
    } else {
      completion->mutable_text()->swap(*event.mutable_delta()->mutable_text());
      completion->mutable_token_ids()->Swap(event.mutable_delta()->mutable_token_ids());
      completion->mutable_logprobs()->Swap(event.mutable_delta()->mutable_logprobs());
    }
  }
  SerializeMessage(response, out);
}

class ScoreMethod final : public GenerationMethod {
 public:
  ScoreMethod() : GenerationMethod("Score", /*streams=*/false) {}
  absl::StatusOr<GenerationSpec> Convert(grpc::ByteBuffer* bytes,
                                         const ConversionContext& context) const override {
    const auto request = Parse<v1::ScoreRequest>(bytes);
    if (!request.ok()) return request.status();
    return ConvertScore(*request, context);
  }
  void Encode(Events events, grpc::ByteBuffer* out) const override;
};

void ScoreMethod::Encode(Events events, grpc::ByteBuffer* out) const {
  v1::ScoreResponse response;
  for (v1::GenerateDelta& event : events) {
    if (event.has_finish()) {
      v1::Finish* finish = event.mutable_finish();
      response.mutable_usage()->Swap(finish->mutable_usage());
      if (finish->has_perf()) response.mutable_perf()->Swap(finish->mutable_perf());
      if (finish->has_acp()) response.mutable_acp()->Swap(finish->mutable_acp());
      continue;
    }
    v1::PromptInfo* prompt = event.mutable_prompt();
    if (!prompt->request_id().empty()) {
      response.set_request_id(prompt->request_id());
      response.mutable_token_ids()->Swap(prompt->mutable_token_ids());
    }
    for (const v1::TokenLogprobs& position : prompt->prompt_logprobs()) {
      response.set_total_logprob(response.total_logprob() +
                                 static_cast<double>(position.token().logprob()));
    }
    response.mutable_logprobs()->MergeFrom(prompt->prompt_logprobs());
  }
  SerializeMessage(response, out);
}

}  // namespace

GenerateService::GenerateService(ServerCore& core) : RawService(core) {
  Serve(std::make_unique<GenerateMethod>("Generate", /*streams=*/false));
  Serve(std::make_unique<GenerateMethod>("GenerateStream", /*streams=*/true));
  Serve(std::make_unique<ScoreMethod>());
  ServeShort<v1::AbortRequest, v1::AbortResponse>(
      "Abort",
      [&core](const v1::AbortRequest& request,
              const CallInfo& call) -> absl::StatusOr<v1::AbortResponse> {
        if (request.request_ids().empty() || request.request_ids_size() > kMaxAbortIds) {
          return absl::InvalidArgumentError("request_ids: 1 to 1024 ids");
        }
        v1::AbortResponse response;
        for (const std::string& id : request.request_ids()) {
          if (core.Abort(call, id)) response.add_aborted(id);
        }
        return response;
      });
}

}  // namespace fox
