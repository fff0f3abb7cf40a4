// TokenizerService: the answers of Tokenize and Detokenize. See services.h.
#include <memory>
#include <utility>

#include "server/calls/conversion/request_conversion.h"
#include "server/calls/format.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

absl::StatusOr<v1::TokenizeResponse> AnswerOf(const v1::TokenizeRequest& request,
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

absl::StatusOr<v1::DetokenizeResponse> AnswerOf(const v1::DetokenizeRequest& request,
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

// The form of both methods. The call may be over before its answer is made, because the tokenizers'
// libraries cannot be interrupted.
template <class Request>  // NOLINTNEXTLINE(performance-unnecessary-value-param): a FormatFactory
std::unique_ptr<Format> MakeTokenizeFormat(grpc::ByteBuffer message,
                                           const ConversionContext& context) {
  auto answer = [message, &context]() mutable -> absl::StatusOr<std::string> {
    Request request;
    const absl::Status parsed = ParseMessage(message, &request);
    message.Clear();
    if (!parsed.ok()) return parsed;
    const auto response = AnswerOf(request, context);
    if (!response.ok()) return response.status();
    return response->SerializeAsString();
  };
  return std::make_unique<AnswerFormat>(std::move(answer),
                                        [](const absl::Status&) { return std::string(); });
}

}  // namespace

TokenizerService::TokenizerService(ServerCore& core) : RawService(core) {
  ServeCall("Tokenize", Call::Work::kTokenize, MakeTokenizeFormat<v1::TokenizeRequest>);
  ServeCall("Detokenize", Call::Work::kTokenize, MakeTokenizeFormat<v1::DetokenizeRequest>);
}

}  // namespace fox
