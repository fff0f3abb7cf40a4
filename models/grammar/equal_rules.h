// MergeEqualRules: equal rules of a grammar become one. The tools of a request have most rules in
// common, so that their masks are computed and stored once.
#pragma once

#include "xgrammar/grammar.h"

namespace fox {

// Returns a grammar of the same texts in which no two rules have equal bodies, except rules that
// refer to each other in a circle. Drops unused rules. Counts its work (work_meter.h).
xgrammar::Grammar MergeEqualRules(const xgrammar::Grammar& grammar);

}  // namespace fox
