// TokenizerService: see tokenizer_service.h.
#include "server/rpc/tokenizer_service.h"

#include <optional>
#include <utility>

#include "server/calls/request_conversion.h"

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

}  // namespace

// The call may be over before the work is: the tokenizers' libraries cannot be interrupted, but
// nobody waits for it then.
template <class Request, class Response>
void TokenizerService::ServeLater(const char* method) {
  Serve(method, [this, method](grpc::CallbackServerContext* context, const Bytes* request) {
    CallInfo call = DescribeCall(method, *context, core_);
    absl::Status status = core_.TakeShare(&call, static_cast<int64_t>(request->Length()));
    if (status.ok() && core_.tokenizing().queued() >= kMaxQueued) {
      status = absl::ResourceExhaustedError("too many texts wait to be tokenized");
    }
    const uint64_t client = call.client;
    const int64_t size = call.share.bytes();
    const auto reactor = (new CallReactor(core_, context, std::move(call)))->self();
    if (!status.ok()) {
      reactor->Answer(status);
      return reactor.get();
    }
    reactor->KeepRequest(request);
    core_.tokenizing().Post(client, size, [reactor, &conversion = core_.context] {
      std::optional<Bytes> bytes = reactor->TakeRequest();
      if (!bytes.has_value()) return;
      Request message;
      Response response;
      absl::Status parsed = ParseMessage(*bytes, &message);
      bytes->Clear();
      if (parsed.ok()) parsed = Run(message, conversion, &response);
      reactor->Answer(std::move(parsed), &response);
    });
    return reactor.get();
  });
}

TokenizerService::TokenizerService(ServerCore& core) : RawService(core) {
  ServeLater<v1::TokenizeRequest, v1::TokenizeResponse>("Tokenize");
  ServeLater<v1::DetokenizeRequest, v1::DetokenizeResponse>("Detokenize");
}

}  // namespace fox
