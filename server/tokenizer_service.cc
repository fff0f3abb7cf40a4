// TokenizerService: see tokenizer_service.h.
#include "server/tokenizer_service.h"

#include <utility>

#include "server/request_conversion.h"
#include "server/sampling_conversion.h"

namespace fox {
namespace {

constexpr size_t kMaxQueued = 256;
constexpr int kMaxIds = 1 << 20;

absl::Status Run(const v1::TokenizeRequest& request, const ConversionContext& context,
                 v1::TokenizeResponse* out) {
  absl::Status status = CheckModelName(request.model(), context);
  if (!status.ok()) return status;
  const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
  absl::StatusOr<std::vector<int32_t>> ids =
      TokenizeText(request.text(), add_special, "text", context);
  if (!ids.ok()) return ids.status();
  for (int32_t id : *ids) {
    out->add_token_ids(static_cast<uint32_t>(id));
    if (request.pieces()) out->add_pieces(context.tokenizer->TokenBytes(id, false));
  }
  return absl::OkStatus();
}

absl::Status Run(const v1::DetokenizeRequest& request, const ConversionContext& context,
                 v1::DetokenizeResponse* out) {
  absl::Status status = CheckModelName(request.model(), context);
  if (!status.ok()) return status;
  if (context.tokenizer == nullptr) {
    return absl::FailedPreconditionError("token_ids: the model has no tokenizer");
  }
  if (request.token_ids_size() > kMaxIds) {
    return absl::InvalidArgumentError("token_ids: at most 1048576 ids");
  }
  std::vector<int32_t> ids;
  status = ConvertIds(request.token_ids(), "token_ids", context.tokenizer->info().vocab_size, &ids);
  if (!status.ok()) return status;
  const bool skip = !request.has_skip_special_tokens() || request.skip_special_tokens();
  out->set_text(Detokenize(*context.tokenizer, ids, skip));
  return absl::OkStatus();
}

template <class Request, class Response>
grpc::ServerUnaryReactor* Serve(ServerCore& core, grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  if (core.admission().queued() >= kMaxQueued) {
    return Reply(absl::ResourceExhaustedError("the queue is full: too many requests"), Response(),
                 core, context, response);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // The library keeps `request`, `response` and the context until Finish.
  core.admission().Post([&core, context, request, response, reactor] {
    Request message;
    Response out;
    absl::Status status = ParseMessage(*request, &message);
    if (status.ok()) status = Run(message, core.context, &out);
    if (status.ok()) SerializeMessage(out, response);
    reactor->Finish(EndStatus(status, core, context));
  });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* TokenizerService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Serve<v1::TokenizeRequest, v1::TokenizeResponse>(core_, context, request, response);
}

grpc::ServerUnaryReactor* TokenizerService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Serve<v1::DetokenizeRequest, v1::DetokenizeResponse>(core_, context, request, response);
}

}  // namespace fox
