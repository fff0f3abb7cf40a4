// RawHttp2: bytes of gRPC calls for clients on a plain socket, which can leave in the middle of a
// frame. The gRPC library never does that.
#pragma once

#include <string>

namespace fox {

// The preface of a connection and `calls` complete calls of `method` with `message`.
std::string RawHttp2Calls(const std::string& method, const std::string& message, int calls);
// A RST_STREAM frame with CANCEL for call `call` (0, 1, ...).
std::string RawHttp2Reset(int call);

}  // namespace fox
