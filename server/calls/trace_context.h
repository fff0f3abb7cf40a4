// TraceContext: where a call stands in a distributed trace (W3C traceparent), passed on to
// the log and to the Chrome trace.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/process/log.h"

namespace fox {

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

}  // namespace fox
