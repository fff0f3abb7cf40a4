// CallInfo: what is known of a call before its message is parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "server/calls/call_budget.h"
#include "server/process/log.h"

namespace fox {

// Where a call stands in a distributed trace (W3C traceparent), passed on to the log and to the
// Chrome trace.
struct TraceContext {
  std::string parent;  // the header as it came; empty: none, or not a valid one

  std::string trace_id() const { return parent.empty() ? "" : parent.substr(3, 32); }
  std::string parent_id() const { return parent.empty() ? "" : parent.substr(36, 16); }
  // `trace_id` and `parent_id`, where there are any.
  void AddTo(std::vector<LogField>* fields) const {
    if (parent.empty()) return;
    fields->emplace_back("trace_id", trace_id());
    fields->emplace_back("parent_id", parent_id());
  }
};

// Of the value of a `traceparent` header or metadata entry: VERSION-TRACE_ID-PARENT_ID-FLAGS, all
// lower-case hexadecimal. Whatever else comes is ignored, as the specification asks: empty.
TraceContext ParseTraceParent(std::string_view header);

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
