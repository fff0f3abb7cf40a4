// PortCredentials: gRPC's checks before it serves: TLS or plain text for a connection, and the
// caller's privilege for each call's method. Calls are checked when their headers arrive: a refused
// call has cost no message, no budget and no handler, be it for a service of ours or the library's.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/security/server_credentials.h"
#include "server/calls/access/access.h"
#include "server/process/tls_files.h"
#include "server/rpc/public_call_limit.h"

namespace fox {

// The privilege that each gRPC method needs, in one table. A method that the table lacks is
// answered as if it did not exist: forgotten means closed, not open.
struct MethodPolicy {
  const char* path;  // "/package.Service/Method"
  Privilege needed;
};

absl::Span<const MethodPolicy> MethodPolicies();
// Null: no such method.
const MethodPolicy* FindMethodPolicy(absl::string_view path);

// `tls` null: plain text; with TLS one thread has to set up the server's connections. `access`
// null: every client may call everything. `limit`: of public methods; their calls leave it.
std::shared_ptr<grpc::ServerCredentials> PortCredentials(std::shared_ptr<TlsFiles> tls,
                                                         std::shared_ptr<Access> access,
                                                         std::shared_ptr<PublicCallLimit> limit);

}  // namespace fox
