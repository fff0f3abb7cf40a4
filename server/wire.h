// The wire: messages out of and into gRPC byte buffers. Services take raw buffers, because the
// library's own parsing answers a malformed message with UNIMPLEMENTED; ours is INVALID_ARGUMENT.
// One place that includes the gRPC headers a service needs.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/server_core.h"

namespace fox {

// InvalidArgument: not such a message, or a string in it is not UTF-8.
absl::Status ParseMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out);
void SerializeMessage(const google::protobuf::Message& in, grpc::ByteBuffer* out);

// The status a call ends with; RESOURCE_EXHAUSTED carries the trailing metadata retry-after-ms.
grpc::Status EndStatus(const absl::Status& status, const ServerCore& core,
                       grpc::CallbackServerContext* context);

// Ends a call that never ran longer than its handler.
grpc::ServerUnaryReactor* Reply(const absl::Status& status,
                                const google::protobuf::Message& message, const ServerCore& core,
                                grpc::CallbackServerContext* context, grpc::ByteBuffer* response);

// The call's deadline on the engine's clock; kNever when the client set none.
Seconds DeadlineOf(const grpc::CallbackServerContext& context, const EngineThread& engine);

}  // namespace fox
