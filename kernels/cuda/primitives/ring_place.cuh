// A place in a ring of stages, each with a barrier "has arrived" and one "has been read".
#pragma once

#include <cstdint>

namespace fox::cuda {

struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;  // of the round

  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fox::cuda
