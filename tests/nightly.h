// Amounts of random tests: larger at night (FOX_NIGHTLY in the environment, which `./run test all`
// sets), smaller for a submission, which needs an answer within minutes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace fox {

inline bool IsNightly() { return std::getenv("FOX_NIGHTLY") != nullptr; }
inline int64_t Amount(int64_t usual, int64_t at_night) { return IsNightly() ? at_night : usual; }

}  // namespace fox
