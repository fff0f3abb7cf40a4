// Random: the only source of chance in the simulation, and Mix, the hash under it. Unlike the
// standard library's distributions, they give the same values on every machine.
#pragma once

#include <cstdint>

namespace fox::sim {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x632BE59BD9B4E019ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one made for each operation costs nothing.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(Mix(seed, stream)) {}
  uint64_t Next() { return Mix(++state_, 0); }
  // In [low, high]; fewer than 2^32 values.
  int64_t Int(int64_t low, int64_t high) {
    const uint64_t count = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>((Next() >> 32) * count >> 32);
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }  // [0, 1)
  bool Chance(double p) { return Unit() < p; }

 private:
  uint64_t state_;
};

}  // namespace fox::sim
