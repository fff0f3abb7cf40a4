// The wire: messages out of and into gRPC byte buffers, a call's metadata and deadline, its status.
// Services take raw buffers: the library's own parsing runs before anything can be refused and
// answers a malformed message with UNIMPLEMENTED; ours is INVALID_ARGUMENT. One place that includes
// the gRPC headers a service needs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/calls/server_core.h"

namespace fox {

// InvalidArgument: not such a message, or a string in it is not UTF-8.
absl::Status ParseMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out);
// ParseMessage for a message that has few fields, in a handler: InvalidArgument beyond 256 KiB.
absl::Status ParseShortMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out);
// The bytes of a message as a buffer; long ones are not copied.
grpc::ByteBuffer ToByteBuffer(std::string bytes);

// Takes the bytes of a request, which the library would keep until the call ends.
grpc::ByteBuffer TakeBytes(const grpc::ByteBuffer* request);

// Describes a call as it arrives, without a share.
CallInfo DescribeCall(const char* method, const grpc::CallbackServerContext& context,
                      ServerCore& core);

// Messages are at most 1 KiB; a client never sees UNKNOWN.
grpc::Status ToGrpc(const absl::Status& status);

// The status a call ends with. RESOURCE_EXHAUSTED, and nothing else, says when to retry: trailing
// metadata grpc-retry-pushback-ms and retry-after-ms, google.rpc.RetryInfo in the status' details.
grpc::Status EndStatus(const absl::Status& status, int64_t retry_after_ms,
                       grpc::CallbackServerContext* context);

// Converts a deadline to the engine's clock, which reads `now`; kNever for none and for a deadline
// that is further away than clocks can tell.
Seconds DeadlineOf(gpr_timespec deadline, Seconds now);

}  // namespace fox
