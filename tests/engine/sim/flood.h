// Flood: newcomers come on and on, and every earlier client goes on until it ends, each of its
// tokens within a bound that follows from the scheduler's rules. Read simulation.h first.
#pragma once

#include "tests/engine/sim/day.h"
#include "tests/engine/sim/random.h"

namespace fox::sim {

// Readers are fast and patient now. Returns the longest wait for a token, as a part of its bound.
// `kinds` tells what newcomers are like, `random` all else.
double Flood(Random& kinds, Random& random, Day* day);

}  // namespace fox::sim
