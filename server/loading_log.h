// LoadingLog: logs the progress of loading a large model.
#pragma once

#include <functional>

#include "models/weights.h"

namespace fox {

// Returns a callback that logs the number of loaded layers, at most once in `seconds` of `clock`. A
// model that loads faster logs nothing.
LoadProgress LoadingLog(double seconds, std::function<double()> clock);

}  // namespace fox
