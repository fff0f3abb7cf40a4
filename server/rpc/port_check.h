// CheckPort: whether a gRPC port answers, before its number is printed. The library goes on without
// threads that it could not start, and then accepts connections that it never reads.
#pragma once

#include "absl/status/status.h"
#include "server/process/connection_acceptor.h"

namespace fox {

// Hands a connection of our own over to `sink` and waits, at most `seconds`, until its call is
// answered, or the connection ended, as a port does that speaks TLS. Unavailable: it is not, or
// this machine has no descriptor or address for it.
absl::Status CheckPort(const ConnectionAcceptor::Sink& sink, double seconds = 5);

}  // namespace fox
