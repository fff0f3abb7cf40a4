// GenerateService: see generate_service.h.
#include "server/rpc/generate_service.h"

#include <memory>
#include <utility>

#include "server/calls/request_conversion.h"
#include "server/rpc/short_call.h"
#include "server/rpc/token_stream_reactor.h"

namespace fox {
namespace {

constexpr int kMaxAbortIds = 1024;

// Parses, checks and tokenizes; `convert` turns the parsed message into a spec.
template <class Message, class Convert>
absl::StatusOr<GenerationSpec> ConvertBytes(grpc::ByteBuffer* bytes, Convert convert,
                                            const ConversionContext& context) {
  Message message;
  absl::Status status = ParseMessage(*bytes, &message);
  bytes->Clear();
  if (status.ok()) status = CheckModelName(message.model(), context);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> id = CheckRequestId(message.request_id());
  if (!id.ok()) return id.status();
  absl::StatusOr<GenerationSpec> spec = convert(message, context);
  if (spec.ok()) spec->request_id = *std::move(id);
  return spec;
}

// A call from its arrival on. `make` makes its reactor of its CallInfo.
template <class Message, class Convert, class Make>
auto* Start(ServerCore& core, CallInfo call, const grpc::ByteBuffer* request, Convert convert,
            Make make) {
  const absl::Status admitted = core.Admit(&call, static_cast<int64_t>(request->Length()));
  const auto bytes = std::make_shared<grpc::ByteBuffer>(TakeBytes(request));
  auto* reactor = make(std::move(call));
  if (admitted.ok()) {
    reactor->Run([bytes, convert, &context = core.context] {
      return ConvertBytes<Message>(bytes.get(), convert, context);
    });
  } else {
    reactor->Refuse(admitted);
  }
  return reactor;
}

absl::Status AbortAll(const v1::AbortRequest& request, const ServerCore& core,
                      v1::AbortResponse* out) {
  if (request.request_ids().empty() || request.request_ids_size() > kMaxAbortIds) {
    return absl::InvalidArgumentError("request_ids: 1 to 1024 ids");
  }
  for (const std::string& id : request.request_ids()) {
    const std::shared_ptr<RunningCall> call = core.Find(id);
    if (call == nullptr) continue;
    call->Cancel(absl::OkStatus());
    out->add_aborted(id);
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* GenerateService::Generate(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  const auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/false, conversion);
  };
  return Start<v1::GenerateRequest>(
      core_, DescribeCall("Generate", *context, core_), request, convert, [&](CallInfo call) {
        return new GenerateReactor(core_, context, response, std::move(call));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/true, conversion);
  };
  return Start<v1::GenerateRequest>(
      core_, DescribeCall("GenerateStream", *context, core_), request, convert,
      [&](CallInfo call) { return new TokenStreamReactor(core_, context, std::move(call)); });
}

grpc::ServerUnaryReactor* GenerateService::Score(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return Start<v1::ScoreRequest>(
      core_, DescribeCall("Score", *context, core_), request, ConvertScore,
      [&](CallInfo call) { return new ScoreReactor(core_, context, response, std::move(call)); });
}

grpc::ServerUnaryReactor* GenerateService::Abort(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return AnswerShort<v1::AbortRequest, v1::AbortResponse>(
      core_, DescribeCall("Abort", *context, core_), context, request, response,
      [&](const v1::AbortRequest& message, v1::AbortResponse* out) {
        return AbortAll(message, core_, out);
      });
}

}  // namespace fox
