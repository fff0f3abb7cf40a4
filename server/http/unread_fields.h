// Fields of a completion's body that the server does not read: those that would change the answer
// are refused, and the message says what to send instead; all others are ignored.
#pragma once

#include "absl/status/status.h"
#include "server/http/json_fields.h"

namespace fox {

// After the route has read its fields. InvalidArgument: a field is in the table of unsupported
// ones and its value asks for something (not null, false, "", [] or {}), its name is that of a
// field that was read but for one letter, capitals, '_' and '-', or there are more than 128 fields.
absl::Status CheckUnreadFields(const JsonFields& fields);

}  // namespace fox
