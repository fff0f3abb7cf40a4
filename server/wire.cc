// The wire: see wire.h.
#include "server/wire.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "grpcpp/impl/codegen/proto_utils.h"
#include "server/status_mapping.h"

namespace fox {

using MessageTraits = grpc::SerializationTraits<google::protobuf::Message>;

absl::Status ParseMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out) {
  grpc::ByteBuffer consumed(in);  // shares the bytes
  if (consumed.Length() == 0) return absl::OkStatus();
  if (MessageTraits::Deserialize(&consumed, out).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("the request is not a valid " +
                                    std::string(out->GetDescriptor()->full_name()) +
                                    ": it is malformed or a string in it is not UTF-8");
}

void SerializeMessage(const google::protobuf::Message& in, grpc::ByteBuffer* out) {
  bool own = false;
  MessageTraits::Serialize(in, out, &own);
}

grpc::Status EndStatus(const absl::Status& status, const ServerCore& core,
                       grpc::CallbackServerContext* context) {
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    context->AddTrailingMetadata("retry-after-ms", std::to_string(core.RetryAfterMs()));
  }
  return ToGrpc(status);
}

grpc::ServerUnaryReactor* Reply(const absl::Status& status,
                                const google::protobuf::Message& message, const ServerCore& core,
                                grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  if (status.ok()) SerializeMessage(message, response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(EndStatus(status, core, context));
  return reactor;
}

Seconds DeadlineOf(const grpc::CallbackServerContext& context, const EngineThread& engine) {
  using Clock = std::chrono::system_clock;
  const Clock::time_point deadline = context.deadline();
  if (deadline == Clock::time_point::max()) return kNever;
  return engine.Now() + std::chrono::duration<double>(deadline - Clock::now()).count();
}

}  // namespace fox
