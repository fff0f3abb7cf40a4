// PortCredentials: what gRPC asks before it serves: TLS or plain text on a connection, and, for
// each call, whether its method is open to the caller. The answer is given when a call's headers
// are there: what is refused has cost no message, no budget and no handler, whichever service of
// ours or of the library it was for.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/security/server_credentials.h"
#include "server/calls/access.h"
#include "server/process/tls_files.h"
#include "server/rpc/public_call_limit.h"

namespace fox {

// What each gRPC method needs, in one table. A method that is not in it is answered as if it did
// not exist, so one that was forgotten is closed, not open.
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
