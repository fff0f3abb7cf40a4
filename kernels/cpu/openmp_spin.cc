// See openmp_spin.h.
#include "kernels/cpu/openmp_spin.h"

#include <unistd.h>

#include <cstdlib>

namespace fox {

void UseShortOpenMpSpins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv("GOMP_SPINCOUNT", "500", 1) != 0) return;
  // Where this fails (no /proc), the program goes on with the long spins.
  execv("/proc/self/exe", argv);
}

}  // namespace fox
