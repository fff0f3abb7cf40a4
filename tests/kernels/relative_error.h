// RelativeError: how far a computed array is from the right one.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace fox::testing {

// |got - want| / |want| in the Euclidean norm; 0 where both are equal, infinity if an element of
// `got` is not finite.
inline double RelativeError(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace fox::testing
