// CallInfo: a call as it is known before its message is parsed: client, deadline, share, trace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/request/request.h"
#include "server/calls/limits/call_budget.h"
#include "server/process/log.h"

namespace fox {

// Where a call stands in a distributed trace (W3C traceparent), passed on to the log and to the
// Chrome trace.
struct TraceContext {
  std::string parent;  // the header as it came; empty: none came, or an invalid one

  std::string trace_id() const { return parent.empty() ? "" : parent.substr(3, 32); }
  std::string parent_id() const { return parent.empty() ? "" : parent.substr(36, 16); }
  // Adds the fields `trace_id` and `parent_id`, if there is a trace.
  void AddTo(std::vector<LogField>* fields) const {
    if (parent.empty()) return;
    fields->emplace_back("trace_id", trace_id());
    fields->emplace_back("parent_id", parent_id());
  }
};

// Reads the value of a `traceparent` header or metadata entry: VERSION-TRACE_ID-PARENT_ID-FLAGS,
// all lower-case hexadecimal. Any other value is ignored, as the specification asks, and gives an
// empty context.
TraceContext ParseTraceParent(std::string_view header);

// The headers or metadata entries of a call that tell its client, and its place in a trace.
struct CallerHeaders {
  absl::string_view authorization, traceparent;  // the first of each; empty: none
  absl::string_view client;   // the first entry of ServerCore::client_metadata; empty: none
  bool client_twice = false;  // there is another one
};

struct CallInfo {
  const char* method = "";     // as the .proto files call it: "GenerateStream"; or a path
  std::string peer;            // the connection's other end
  uint64_t client = 0;         // takes turns with others: Request::client
  uint64_t tenant = 0;         // the client if it was verified, else 0; its requests share prefixes
  bool administrator = false;  // by its token
  absl::Status refusal;        // not Ok: no share is given (ServerCore::AdmitShort)
  Seconds deadline = kNever;   // on the engine's clock
  CallBudget::Share share;     // of ServerCore::calls
  Seconds arrival = 0;         // on the engine's clock
  TraceContext trace;          // the client's, for the log
};

}  // namespace fox
