// Rules of a grammar that say the same become one: a list of tools has most of its rules, and so
// the masks of their states, once.
#pragma once

#include "xgrammar/grammar.h"

namespace fox {

// The same texts; rules that no other needs are gone. Counts its work (work_meter.h).
xgrammar::Grammar MergeEqualRules(const xgrammar::Grammar& grammar);

}  // namespace fox
