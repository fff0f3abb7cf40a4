// TraceContext: what is a W3C traceparent, and what is not.
#include "server/calls/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace fox {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kParent = "b7ad6b7169203331";
const std::string kHeader = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceContextTest, AValidHeaderIsKeptAndTakenApart) {
  const TraceContext context = ParseTraceParent(kHeader);
  EXPECT_EQ(context.parent, kHeader);
  EXPECT_EQ(context.trace_id(), kTrace);
  EXPECT_EQ(context.parent_id(), kParent);
  std::vector<LogField> fields;
  context.AddTo(&fields);
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].text, kTrace);
  EXPECT_EQ(fields[1].text, kParent);
}

TEST(TraceContextTest, LaterVersionsMayBeLonger) {
  const std::string later = "cc" + kHeader.substr(2);
  EXPECT_EQ(ParseTraceParent(later + "-what-the-future-brings").parent, later);
  EXPECT_EQ(ParseTraceParent(later).parent, later);
  EXPECT_EQ(ParseTraceParent(later + "x").parent, "");
  EXPECT_EQ(ParseTraceParent(kHeader + "-more").parent, "");
}

TEST(TraceContextTest, WhatIsNotOneIsIgnored) {
  const std::string zeros(32, '0');
  for (const std::string& bad :
       {std::string(), "ff" + kHeader.substr(2), "0g" + kHeader.substr(2),
        "00-" + zeros + "-" + kParent + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-0AF7651916CD43DD8448EB211C80319C-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-0\n", kHeader.substr(0, 54)}) {
    EXPECT_EQ(ParseTraceParent(bad).parent, "") << bad;
  }
  for (size_t i = 0; i < kHeader.size(); ++i) {  // every single character counts
    std::string bad = kHeader;
    bad[i] = '_';
    const TraceContext context = ParseTraceParent(bad);
    EXPECT_EQ(context.trace_id() + context.parent_id(), "") << bad;
  }
  std::vector<LogField> fields;
  TraceContext().AddTo(&fields);
  EXPECT_TRUE(fields.empty());
}

}  // namespace
}  // namespace fox
