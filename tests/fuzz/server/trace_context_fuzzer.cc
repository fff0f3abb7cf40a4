// The header traceparent against the words of its specification.
#include <string>

#include "server/calls/access/call_info.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

// VERSION-TRACE_ID-PARENT_ID-FLAGS, by a pattern: h is a hexadecimal digit in lower case.
bool IsTraceParent(const std::string& header) {
  const std::string pattern = "hh-" + std::string(32, 'h') + "-" + std::string(16, 'h') + "-hh";
  if (header.size() < pattern.size()) return false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = header[i];
    const bool hexadecimal = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (pattern[i] == 'h' ? !hexadecimal : c != '-') return false;
  }
  const std::string version = header.substr(0, 2);
  const bool longer = header.size() > pattern.size();
  if (version == "ff" || (longer && (version == "00" || header[pattern.size()] != '-'))) {
    return false;
  }
  return header.substr(3, 32) != std::string(32, '0') &&
         header.substr(36, 16) != std::string(16, '0');
}

}  // namespace

FUZZ_TEST(trace_context) {
  const std::string header = in.Rest();
  const TraceContext context = ParseTraceParent(header);
  FOX_CHECK(context.parent == (IsTraceParent(header) ? header.substr(0, 55) : ""));
  FOX_CHECK(context.trace_id().size() == (context.parent.empty() ? 0u : 32u));
  FOX_CHECK(context.parent_id().size() == (context.parent.empty() ? 0u : 16u));
}

}  // namespace fox
