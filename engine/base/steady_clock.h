// The steady clock in seconds: EngineThread's default clock.
#pragma once

#include <chrono>

#include "engine/request/request.h"

namespace fox {

inline Seconds SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// For waits until a time point; `seconds` must be finite.
inline std::chrono::steady_clock::duration SteadyDuration(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

}  // namespace fox
