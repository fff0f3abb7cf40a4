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

absl::StatusOr<CallInfo> TakeCall(ServerCore& core, const char* method,
                                  const grpc::CallbackServerContext& context,
                                  const grpc::ByteBuffer& bytes) {
  absl::StatusOr<CallBudget::Share> share =
      core.calls().Take(0, static_cast<int64_t>(bytes.Length()) * 4);
  if (!share.ok()) return share.status();
  return CallInfo{
      method,           context.peer(), 0, DeadlineOf(context, core.engine), *std::move(share),
      core.engine.Now()};
}

// Parses a request and runs it; `convert` turns the parsed message into a spec.
template <class Message, class Reactor, class Convert>
Reactor* Start(ServerCore& core, const grpc::ByteBuffer& bytes, Convert convert, Reactor* reactor) {
  absl::Status status = core.CheckAdmission();
  auto message = std::make_shared<Message>();
  status.Update(ParseMessage(bytes, message.get()));
  if (status.ok()) status = CheckModelName(message->model(), core.context);
  if (!status.ok()) {
    reactor->Refuse(status);
    return reactor;
  }
  reactor->Run([message, convert, &core]() -> absl::StatusOr<GenerationSpec> {
    absl::StatusOr<std::string> id = CheckRequestId(message->request_id());
    if (!id.ok()) return id.status();
    absl::StatusOr<GenerationSpec> spec = convert(*message, core.context);
    if (spec.ok()) spec->request_id = *std::move(id);
    return spec;
  });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* GenerateService::Generate(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  absl::StatusOr<CallInfo> info = TakeCall(core_, "Generate", *context, *request);
  if (!info.ok()) return Reply(info.status(), v1::GenerateResponse(), core_, context, response);
  auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/false, conversion);
  };
  return Start<v1::GenerateRequest>(
      core_, *request, convert, new GenerateReactor(core_, context, response, *std::move(info)));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  absl::StatusOr<CallInfo> info = TakeCall(core_, "GenerateStream", *context, *request);
  const absl::Status taken = info.status();
  auto* reactor = new TokenStreamReactor(core_, context, info.ok() ? *std::move(info) : CallInfo());
  if (!taken.ok()) {
    reactor->Refuse(taken);
    return reactor;
  }
  auto convert = [](const v1::GenerateRequest& message, const ConversionContext& conversion) {
    return ConvertGenerate(message, /*stream=*/true, conversion);
  };
  return Start<v1::GenerateRequest>(core_, *request, convert, reactor);
}

grpc::ServerUnaryReactor* GenerateService::Score(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  absl::StatusOr<CallInfo> info = TakeCall(core_, "Score", *context, *request);
  if (!info.ok()) return Reply(info.status(), v1::ScoreResponse(), core_, context, response);
  return Start<v1::ScoreRequest>(core_, *request, ConvertScore,
                                 new ScoreReactor(core_, context, response, *std::move(info)));
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
