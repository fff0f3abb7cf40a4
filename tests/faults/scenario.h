// What a client does of everything, one call after the other, and what may come of it while the
// server is made to fail.
#pragma once

#include <string>
#include <vector>

#include "grpcpp/support/status.h"
#include "tests/faults/server_process.h"

namespace fox {

struct ScenarioStep {
  std::string name;
  grpc::Status status;
  std::string answer;  // without what differs between two runs
};

// Each call has 20 s.
std::vector<ScenarioStep> RunScenario(const ServerProcess& server);

// Each step has the answer that it had in `sound`, or a beginning of it and an error that permits
// to try again.
void ExpectSoundOrRefused(const std::vector<ScenarioStep>& steps,
                          const std::vector<ScenarioStep>& sound);

}  // namespace fox
