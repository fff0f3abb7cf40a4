// Small scope: three requests over four pages, and every order in which so many events can happen:
// submissions, steps, cancellations, acknowledgements, time. After each the day is finished and
// checked. "Most bugs have small counterexamples" (Jackson, Software Abstractions).
#pragma once

#include <cstdint>
#include <string>

#include "tests/engine/sim/bugs.h"
#include "tests/engine/sim/marks.h"

namespace fox::sim {

struct ScopeReport {
  std::string violation;  // with the events that lead there; empty: none
  int64_t days = 0;
  Marks marks;
};

// Every order of `depth` events, with one plan in flight and with two.
ScopeReport ExploreSmallScope(int depth, Bug bug = Bug::kNone);

}  // namespace fox::sim
