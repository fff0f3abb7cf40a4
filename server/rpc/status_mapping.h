// Status mapping: the one place where an absl::Status becomes a gRPC status. Messages are at most
// 1 KiB; a client never sees UNKNOWN.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace fox {

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace fox
