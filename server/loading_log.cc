// LoadingLog: one line each few seconds.
#include "server/loading_log.h"

#include <cstdint>
#include <utility>

#include "server/process/log.h"

namespace fox {

LoadProgress LoadingLog(double seconds, std::function<double()> clock) {
  const double begin = clock();
  return [seconds, clock = std::move(clock), next = begin + seconds](int done, int total) mutable {
    const double now = clock();
    if (now < next) return;
    next = now + seconds;
    Log(LogLevel::kInfo, "loading", {{"layers", int64_t{done}}, {"of", int64_t{total}}});
  };
}

}  // namespace fox
