// CallSimulation: one seed is one day of random clients over the real call layer and engine, in one
// thread with a simulated clock. Each thread that works for a call is an actor that the day lets
// act; while one actor is inside a call's format or transport, where no lock is held, others act,
// too: so a reader closes, a write returns, a request is aborted at every point. Deterministic: a
// seed that fails fails again. Phases: a load; then no new calls, and every call must end.
#pragma once

#include <string>

#include "tests/server/calls/sim/call_report.h"

namespace fox::sim {

CallReport SimulateCalls(const CallDayOptions& options);

// The seed, the operation, the violation, and the command that shows it.
std::string Describe(const CallDayOptions& options, const CallReport& report);

}  // namespace fox::sim
