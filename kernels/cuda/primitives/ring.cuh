// A ring of stages in shared memory that passes tiles from copying to multiplying threads, and a
// place in it.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/mbarrier.cuh"

namespace fox::cuda {

struct Ring {
  unsigned char* memory;
  int stage_bytes;
  int stages;
  Mbarrier* full;   // of each stage: its tile has arrived
  Mbarrier* empty;  // of each stage: its tile has been read

  // By one thread.
  __device__ __forceinline__ void Init(int arrivals, int readers) const {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      full[s].Init(arrivals);
      empty[s].Init(readers);
    }
  }
  __device__ __forceinline__ unsigned char* At(int stage) const {
    return memory + stage * stage_bytes;
  }
};

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
