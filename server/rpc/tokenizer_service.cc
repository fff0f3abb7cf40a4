// TokenizerService: see services.h.
#include <optional>
#include <utility>

#include "server/calls/request_conversion.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

absl::StatusOr<v1::TokenizeResponse> Run(const v1::TokenizeRequest& request,
                                         const ConversionContext& context) {
  absl::Status status = CheckModelName(request.model(), context);
  if (!status.ok()) return status;
  const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
  absl::StatusOr<std::vector<int32_t>> ids =
      TokenizeText(request.text(), add_special, "text", context);
  if (!ids.ok()) return ids.status();
  v1::TokenizeResponse out;
  for (int32_t id : *ids) {
    out.add_token_ids(static_cast<uint32_t>(id));
    if (request.pieces()) out.add_pieces(context.tokenizer->TokenBytes(id, false));
  }
  return out;
}

absl::StatusOr<v1::DetokenizeResponse> Run(const v1::DetokenizeRequest& request,
                                           const ConversionContext& context) {
  absl::Status status = CheckModelName(request.model(), context);
  if (!status.ok()) return status;
  const bool skip = !request.has_skip_special_tokens() || request.skip_special_tokens();
  absl::StatusOr<std::string> text = DetokenizeIds(request.token_ids(), skip, "token_ids", context);
  if (!text.ok()) return text.status();
  v1::DetokenizeResponse out;
  out.set_text(*std::move(text));
  return out;
}

}  // namespace

// The call may be over before the work is: the tokenizers' libraries cannot be interrupted, but
// its client has gone.
template <class Request>
void TokenizerService::ServeLater(const char* method) {
  Serve(method, [this, method](grpc::CallbackServerContext* context, const Bytes* request) {
    CallInfo call = DescribeCall(method, *context, core_);
    const absl::Status status =
        core_.AdmitTokenizing(&call, static_cast<int64_t>(request->Length()));
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
      const absl::Status parsed = ParseMessage(*bytes, &message);
      bytes->Clear();
      if (!parsed.ok()) return reactor->Answer(parsed);
      const auto response = Run(message, conversion);
      reactor->Answer(response.status(), response.ok() ? &*response : nullptr);
    });
    return reactor.get();
  });
}

TokenizerService::TokenizerService(ServerCore& core) : RawService(core) {
  ServeLater<v1::TokenizeRequest>("Tokenize");
  ServeLater<v1::DetokenizeRequest>("Detokenize");
}

}  // namespace fox
