// DescribeRequest: what queues and budgets know of a call that came by HTTP.
#pragma once

#include "server/calls/call_info.h"
#include "server/calls/server_core.h"
#include "server/http/http_exchange.h"

namespace fox {

// `method` names it in the log: "/v1/completions".
CallInfo DescribeRequest(const char* method, const HttpRequest& request, ServerCore& core);

}  // namespace fox
