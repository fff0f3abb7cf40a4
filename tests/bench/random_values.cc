// A hash of the position picks from a table; four numbers a hash. See random_values.h.
#include "tests/bench/random_values.h"

#include <algorithm>
#include <random>
#include <vector>

namespace fox {
namespace {

constexpr int kTable = 1 << 16;

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

template <typename T>
void Fill(T* out, int64_t count, uint64_t seed, float mean, float scale) {
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

}  // namespace

void FillNormal(BFloat16* out, int64_t count, uint64_t seed, float mean, float scale) {
  Fill(out, count, seed, mean, scale);
}

void FillNormal(float* out, int64_t count, uint64_t seed, float mean, float scale) {
  Fill(out, count, seed, mean, scale);
}

}  // namespace fox
