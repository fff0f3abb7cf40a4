// CallInfo: what is known of a call before its message is parsed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "server/calls/call_budget.h"
#include "server/calls/trace_context.h"

namespace fox {

// Owned by the call's reactor until OnDone.
struct CallInfo {
  const char* method = "";     // as the .proto files call it: "GenerateStream"
  std::string peer;            // the connection's other end
  uint64_t client = 0;         // whose turn it is: Request::client
  uint64_t tenant = 0;         // the same if it was verified, else 0; its requests share prefixes
  bool administrator = false;  // by its token
  absl::Status refusal;        // not Ok: no share is given (ServerCore::TakeShare)
  Seconds deadline = kNever;   // on the engine's clock
  CallBudget::Share share;     // of ServerCore::calls
  Seconds arrival = 0;         // on the engine's clock
  TraceContext trace;          // the client's, for the log
};

}  // namespace fox
