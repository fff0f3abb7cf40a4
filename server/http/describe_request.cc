// DescribeRequest: see describe_request.h.
#include "server/http/describe_request.h"

#include "absl/strings/string_view.h"

namespace fox {

CallInfo DescribeRequest(const char* method, const HttpRequest& request, ServerCore& core) {
  CallInfo call;
  call.method = method;
  call.peer = request.peer;
  call.client = core.ClientOf(call.peer, request.Header(core.client_metadata),
                              request.Header("authorization"));
  call.arrival = core.engine.Now();
  const absl::string_view trace = request.Header("traceparent");
  call.trace = ParseTraceParent({trace.data(), trace.size()});
  return call;
}

}  // namespace fox
