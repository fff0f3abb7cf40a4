// TokenizerService: see tokenizer_service.h.
#include "server/rpc/tokenizer_service.h"

#include <memory>
#include <utility>

#include "server/calls/request_conversion.h"
#include "server/calls/sampling_conversion.h"
#include "server/rpc/unary_reactor.h"

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

// A call that one thread works on and another may cancel meanwhile. The work goes on then, since
// the tokenizers' libraries cannot be interrupted, but nobody waits for it: what it uses is its
// own.
class TokenizerReactor final : public AnswerReactor {
 public:
  // Whoever takes the reactor first answers; the work holds on to this.
  struct Claim {
    Mutex mutex;
    AnswerReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;

    AnswerReactor* Take() {
      const MutexLock lock(mutex);
      return std::exchange(reactor, nullptr);
    }
    bool taken() {
      const MutexLock lock(mutex);
      return reactor == nullptr;
    }
  };

  TokenizerReactor(ServerCore& core, grpc::CallbackServerContext* context,
                   grpc::ByteBuffer* response, CallInfo call)
      : AnswerReactor(core, context, response, std::move(call)), claim_(std::make_shared<Claim>()) {
    const MutexLock lock(claim_->mutex);
    claim_->reactor = this;
  }

  const std::shared_ptr<Claim>& claim() const { return claim_; }
  void OnCancel() override {
    const std::shared_ptr<Claim> claim = claim_;
    AnswerReactor::OnCancel();
    AnswerReactor* self = claim->Take();
    if (self != nullptr)
      self->Answer(absl::CancelledError("the call is over"), v1::TokenizeResponse());
  }

 private:
  const std::shared_ptr<Claim> claim_;
};

template <class Request, class Response>
void Work(const std::shared_ptr<TokenizerReactor::Claim>& claim, grpc::ByteBuffer* bytes,
          const ConversionContext& context) {
  if (claim->taken()) return;
  Request message;
  Response out;
  absl::Status status = ParseMessage(*bytes, &message);
  bytes->Clear();
  if (status.ok()) status = Run(message, context, &out);
  AnswerReactor* reactor = claim->Take();
  if (reactor != nullptr) reactor->Answer(std::move(status), out);
}

template <class Request, class Response>
grpc::ServerUnaryReactor* Serve(ServerCore& core, const char* method,
                                grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  CallInfo call = DescribeCall(method, *context, core);
  absl::Status status = core.TakeShare(&call, static_cast<int64_t>(request->Length()));
  if (status.ok() && core.tokenizing().queued() >= kMaxQueued) {
    status = absl::ResourceExhaustedError("too many texts wait to be tokenized");
  }
  const uint64_t client = call.client;
  const int64_t size = call.share.bytes();
  auto* reactor = new TokenizerReactor(core, context, response, std::move(call));
  if (status.ok()) {
    const auto bytes = std::make_shared<grpc::ByteBuffer>(TakeBytes(request));
    core.tokenizing().Post(client, size, [claim = reactor->claim(), bytes, &core] {
      Work<Request, Response>(claim, bytes.get(), core.context);
    });
  } else if (reactor->claim()->Take() != nullptr) {
    reactor->Answer(status, Response());
  }
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* TokenizerService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Serve<v1::TokenizeRequest, v1::TokenizeResponse>(core_, "Tokenize", context, request,
                                                          response);
}

grpc::ServerUnaryReactor* TokenizerService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Serve<v1::DetokenizeRequest, v1::DetokenizeResponse>(core_, "Detokenize", context, request,
                                                              response);
}

}  // namespace fox
