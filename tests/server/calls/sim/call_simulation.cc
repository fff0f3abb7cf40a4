// SimulateCalls: see call_simulation.h.
#include "tests/server/calls/sim/call_simulation.h"

#include "absl/strings/str_cat.h"
#include "tests/server/calls/sim/call_day.h"

namespace fox::sim {

CallReport SimulateCalls(const CallDayOptions& options) { return CallDay(options).Run(); }

std::string Describe(const CallDayOptions& options, const CallReport& report) {
  return absl::StrCat("seed ", options.seed, ", operation ", report.operation, ": ",
                      report.violation, "\n  fox-simulate-calls --seed ", options.seed,
                      " --operations ", options.operations, " --print");
}

}  // namespace fox::sim
