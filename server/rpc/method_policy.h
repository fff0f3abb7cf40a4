// The method policy: what each gRPC method needs, in one table. A method that is not in it is
// answered as if it did not exist, so one that was forgotten is closed, not open.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/calls/access.h"

namespace fox {

struct MethodPolicy {
  const char* path;  // "/package.Service/Method"
  Privilege needed;
};

absl::Span<const MethodPolicy> MethodPolicies();
// Null: no such method.
const MethodPolicy* FindMethodPolicy(absl::string_view path);

}  // namespace fox
