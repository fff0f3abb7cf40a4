// Flood: newcomers keep coming, and every earlier client must go on until it ends, with each of its
// tokens within a bound that follows from the scheduler's rules. Read simulation.h first.
#pragma once

#include "tests/engine/sim/day.h"
#include "tests/engine/sim/random.h"

namespace fox::sim {

// Readers are fast and patient now. Returns the longest wait for a token, as a part of its bound.
// `kinds` chooses the kind of the newcomers, `random` everything else.
double Flood(Random& kinds, Random& random, Day* day);

}  // namespace fox::sim
