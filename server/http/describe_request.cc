// DescribeRequest: see describe_request.h.
#include "server/http/describe_request.h"

#include <optional>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"

namespace fox {
namespace {

uint64_t ClientOf(const HttpRequest& request, ServerCore& core) {
  if (!core.client_metadata.empty()) {
    const absl::string_view name = request.Header(core.client_metadata);
    if (!name.empty()) return absl::HashOf('m', name);
  }
  const absl::string_view token = request.Header("authorization");
  if (const std::optional<uint64_t> verified = core.access->ClientOf(token)) return *verified;
  const bool bearer = absl::StartsWithIgnoreCase(token, "bearer ");
  return core.clients.Of(request.peer, bearer ? token : "");
}

}  // namespace

CallInfo DescribeRequest(const char* method, const HttpRequest& request, ServerCore& core) {
  CallInfo call;
  call.method = method;
  call.peer = request.peer;
  call.client = ClientOf(request, core);
  call.arrival = core.engine.Now();
  const absl::string_view trace = request.Header("traceparent");
  call.trace = ParseTraceParent({trace.data(), trace.size()});
  return call;
}

}  // namespace fox
