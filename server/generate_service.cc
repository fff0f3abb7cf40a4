// GenerateService: see generate_service.h.
#include "server/generate_service.h"

#include <memory>
#include <utility>

#include "server/request_conversion.h"
#include "server/token_stream_reactor.h"
#include "server/unary_reactor.h"

namespace fox {
namespace {

constexpr int kMaxAbortIds = 1024;

// Parses a request and starts its Generation; `convert` turns the parsed message into a spec.
template <class Message, class Convert>
absl::StatusOr<std::shared_ptr<Generation>> Start(ServerCore& core,
                                                  const grpc::CallbackServerContext& context,
                                                  const grpc::ByteBuffer& bytes, Convert convert,
                                                  GenerationConsumer* consumer) {
  absl::Status status = core.CheckAdmission();
  if (!status.ok()) return status;
  auto message = std::make_shared<Message>();
  status = ParseMessage(bytes, message.get());
  if (!status.ok()) return status;
  status = CheckModelName(message->model(), core.context);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> id = CheckRequestId(message->request_id());
  if (!id.ok()) return id.status();
  return Generation::Start(
      core, *id, DeadlineOf(context, core.engine),
      [message, convert, &core] { return convert(*message, core.context); }, consumer);
}

}  // namespace

grpc::ServerUnaryReactor* GenerateService::Generate(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  auto* reactor = new GenerateReactor(core_, context, response);
  auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/false, conversion);
  };
  reactor->Started(Start<v1::GenerateRequest>(core_, *context, *request, convert, reactor));
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto* reactor = new TokenStreamReactor(core_, context);
  auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/true, conversion);
  };
  reactor->Started(Start<v1::GenerateRequest>(core_, *context, *request, convert, reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GenerateService::Score(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  auto* reactor = new ScoreReactor(core_, context, response);
  reactor->Started(Start<v1::ScoreRequest>(core_, *context, *request, ConvertScore, reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GenerateService::Abort(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  v1::AbortRequest message;
  v1::AbortResponse out;
  absl::Status status = ParseMessage(*request, &message);
  if (status.ok() && (message.request_ids().empty() || message.request_ids_size() > kMaxAbortIds)) {
    status = absl::InvalidArgumentError("request_ids: 1 to 1024 ids");
  }
  if (status.ok()) {
    for (const std::string& id : message.request_ids()) {
      std::shared_ptr<Generation> generation = core_.Find(id);
      if (generation == nullptr) continue;
      generation->Cancel(absl::OkStatus());
      out.add_aborted(id);
    }
  }
  return Reply(status, out, core_, context, response);
}

}  // namespace fox
