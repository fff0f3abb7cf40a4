// How long OpenMP's threads spin before they sleep. libgomp's default, about a millisecond, is
// longer than a decode step: on a machine that does anything else it makes decoding up to ten times
// slower.
#pragma once

namespace fox {

// Programs call this first in main. libgomp reads its environment before main, so the program is
// started again, once, with GOMP_SPINCOUNT set; unless the user has set it or OMP_WAIT_POLICY.
void UseShortOpenMpSpins(char** argv);

}  // namespace fox
