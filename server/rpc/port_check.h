// CheckPort: checks that a gRPC port answers, before its number is printed. The library goes on
// without threads that it could not start, and then accepts connections that it never reads.
#pragma once

#include "absl/status/status.h"
#include "server/process/connection_acceptor.h"

namespace fox {

// Hands a connection of our own over to `sink` and waits, at most `seconds`, until the port answers
// a call or, as a TLS port does, ends the connection. Unavailable: it does neither, or this machine
// has no descriptor or address for the connection.
absl::Status CheckPort(const ConnectionAcceptor::Sink& sink, double seconds = 5);

}  // namespace fox
