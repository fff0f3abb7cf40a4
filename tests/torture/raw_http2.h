// RawHttp2: a gRPC client written by hand on a socket, for what the library never does: leaving in
// the middle of everything, without a word.
#pragma once

#include <string>

namespace fox {

// A connection's first bytes and `calls` complete calls of `method` with the same message on it.
std::string RawHttp2Calls(const std::string& method, const std::string& message, int calls);
// One that ends call `call` (0, 1, ...) at once.
std::string RawHttp2Reset(int call);

}  // namespace fox
