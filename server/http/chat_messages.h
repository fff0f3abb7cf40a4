// The messages and tools of a body of /v1/chat/completions, as fox.v1 has them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "fox/v1/inference.pb.h"
#include "nlohmann/json.hpp"
#include "server/http/json_fields.h"

namespace fox {

// InvalidArgument names the message. Null: there is none.
absl::Status ReadMessages(const nlohmann::json* value, v1::ChatMessages* out);

// tools, tool_choice and parallel_tool_calls; `body` has the order of their properties.
void ReadTools(JsonFields* fields, const std::string& body, v1::ChatMessages* out);

}  // namespace fox
