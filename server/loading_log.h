// LoadingLog: how far a model is, for those who wait for a large one.
#pragma once

#include <functional>

#include "models/weights.h"

namespace fox {

// Logs the layers that are done, at most once in so many seconds of `clock`, and nothing of a model
// that is loaded before.
LoadProgress LoadingLog(double seconds, std::function<double()> clock);

}  // namespace fox
