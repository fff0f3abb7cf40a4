// GenerateService: see generate_service.h.
#include "server/rpc/generate_service.h"

#include <memory>
#include <utility>

#include "server/calls/request_conversion.h"

namespace fox {
namespace {

using Events = GenerationReactor::Events;
using Kind = GenerationReactor::Kind;

constexpr int kMaxAbortIds = 1024;

// Parses, then converts.
template <class Message, class Convert>
auto Converting(Convert convert) {
  return [convert](grpc::ByteBuffer* bytes,
                   const ConversionContext& context) -> absl::StatusOr<GenerationSpec> {
    Message message;
    absl::Status status = ParseMessage(*bytes, &message);
    bytes->Clear();
    if (!status.ok()) return status;
    return convert(message, context);
  };
}

template <bool stream>
absl::StatusOr<GenerationSpec> ConvertAs(const v1::GenerateRequest& request,
                                         const ConversionContext& context) {
  return ConvertGenerate(request, stream, context);
}

bool EncodeDelta(Events events, grpc::ByteBuffer* out) {
  SerializeMessage(events.front(), out);
  return true;
}

bool EncodeGenerate(Events events, grpc::ByteBuffer* out) {
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
  return true;
}

bool EncodeScore(Events events, grpc::ByteBuffer* out) {
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
  return true;
}

}  // namespace

GenerateService::GenerateService(ServerCore& core) : RawService(core) {
  Serve({"Generate", Kind::kUnary, Converting<v1::GenerateRequest>(ConvertAs<false>),
         EncodeGenerate});
  Serve({"GenerateStream", Kind::kStream, Converting<v1::GenerateRequest>(ConvertAs<true>),
         EncodeDelta});
  Serve({"Score", Kind::kUnary, Converting<v1::ScoreRequest>(ConvertScore), EncodeScore});
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
