// LostMass: bounds on the attention mass that rows lost to evicted pages. Each row of a head bounds
// it by the row's own denominator (kernels/docs/acp.md section 4). For host and device.
#pragma once

#include <cmath>

#include "kernels/core/host_device.h"
#include "kernels/paging/acp.h"

namespace fox {

// The bound on the log of the mass that evicted pages have in a row of a head. `evicted`:
// EvictedLogMass of the last page that is evicted at page ends before the row's page, however many
// of them the row's step has; kNoMass: none. `c` and `log_z`: the row's cumulative log gate and log
// denominator, or both less the same number. `rounding`: RowRounding, and what else `log_z` may be
// too large by beyond the slack. No row loses more than the tolerance; it is the bound where a NaN
// leaves no other.
FOX_HOST_DEVICE inline double LogLostMass(double evicted, double c, double log_z, double rounding,
                                          double log_eps) {
  if (evicted == kNoMass) return kNoMass;
  const double bound = evicted + c - log_z + rounding + kAcpSlack;
  return bound < log_eps ? bound : log_eps;
}

// A mass for a sum, in which smaller ones count as much as the least: a float32 holds it, and a sum
// to which a row added is not 0.
inline constexpr double kLeastLogMass = -80;
FOX_HOST_DEVICE inline double MassOf(double log_mass) {
  if (!(log_mass > kNoMass)) return 0;
  return std::exp(log_mass > kLeastLogMass ? log_mass : kLeastLogMass);
}

// The bounds of rows of all heads and layers: their sum and their largest.
struct LostMass {
  double sum = 0, max_log = kNoMass;  // of the masses
  // The same of mass * max ||v|| / |o|. The input of an output norm moves by at most twice this
  // share of its length; 0 and kNoMass where no norm follows.
  double shift_sum = 0, max_log_shift = kNoMass;

  FOX_HOST_DEVICE void Add(const LostMass& other) {
    sum += other.sum;
    shift_sum += other.shift_sum;
    if (other.max_log > max_log) max_log = other.max_log;
    if (other.max_log_shift > max_log_shift) max_log_shift = other.max_log_shift;
  }
  // One row of a head.
  FOX_HOST_DEVICE void Add(double log_mass, double log_shift) {
    Add(LostMass{MassOf(log_mass), log_mass, MassOf(log_shift), log_shift});
  }
};

}  // namespace fox
