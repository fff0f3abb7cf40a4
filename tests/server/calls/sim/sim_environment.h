// SimEnvironment: the day as its fake formats and transports see it.
#pragma once

#include <string>

#include "tests/server/calls/sim/call_report.h"

namespace fox::sim {

class SimEnvironment {
 public:
  virtual ~SimEnvironment() = default;
  // No lock is held here: other actors may act now.
  virtual void Interrupt() = 0;
  // A promise is broken; the first one counts.
  virtual void ReportViolation(const std::string& what) = 0;
  virtual void Count(CallMark mark) = 0;
};

}  // namespace fox::sim
