// A hash of the position selects four numbers from a table.
#include "tests/bench/random_values.h"

#include <algorithm>
#include <random>
#include <vector>

namespace fox {
namespace {

constexpr int kTable = 1 << 16;

// splitmix64's output function: a good hash of a counter.
constexpr uint64_t Mix(uint64_t z) {
  z = (z + 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

const std::vector<float>& NormalTable() {
  static const std::vector<float> table = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(kTable);
    for (float& value : values) value = normal(random);
    return values;
  }();
  return table;
}

}  // namespace

template <typename T>
void FillNormal(T* out, int64_t count, uint64_t seed, float mean, float scale) {
  const float* table = NormalTable().data();
  const uint64_t start = Mix(seed);
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < count; first += 4) {
    uint64_t hash = Mix(start ^ static_cast<uint64_t>(first));
    const int64_t end = std::min(first + 4, count);
    for (int64_t i = first; i < end; ++i, hash >>= 16) {
      out[i] = static_cast<T>(mean + scale * table[hash & (kTable - 1)]);
    }
  }
}

template void FillNormal(BFloat16*, int64_t, uint64_t, float, float);
template void FillNormal(float*, int64_t, uint64_t, float, float);
template void FillNormal(double*, int64_t, uint64_t, float, float);

}  // namespace fox
