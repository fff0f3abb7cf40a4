// Swarm: the parameters of one seed of the simulation: sizes of executor and requests, and
// frequencies of the clients' actions. Features are switched off in some seeds, so that rare pairs
// meet (Groce et al., Swarm Testing, ISSTA 2012). Read simulation.h first.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "tests/engine/sim/fake_keys.h"
#include "tests/engine/sim/random.h"

namespace fox::sim {

struct Swarm {
  FakeOptions executor;
  EngineOptions engine;
  // Relative frequencies of the operations.
  double submit = 0.3, cancel = 0.0, acknowledge = 0.5, step = 0.5;
  // Probabilities for a request.
  double deadlines = 0.0, windows = 0.0, sampled = 0.0, scored = 0.0, penalties = 0.0, nan = 0.0;
  double biased = 0.0, unpruned = 0.0, reports = 0.0, groups = 0.0, invalid = 0.0;
  double texts_known = 0.0, turns = 0.0, salted = 0.0, bypasses = 0.0;
  double long_prompts = 0.1;
  int64_t long_prompt = 0, short_prompt = 1, max_tokens = 1, flow_window = 6;
  int priorities = 1, clients = 1;
  int burst = 1;            // requests that come at once, at most
  bool only_slots = false;  // nothing but running slots is short: Day::CheckSlots
  double tick = 0.1;
  Seconds step_seconds = 0, token_seconds = 0;  // duration of a step
  double stalls = 0;                            // of an operation: nothing happens for long
  double cancel_all = 0, flood = 0;             // how the day ends
  double flushes = 0;                           // of an operation
  // Of a store for snapshots, if the executor has staging buffers.
  uint64_t store_seed = 0;
  double store_faults = 0, store_delays = 0;
  std::vector<std::vector<int32_t>> texts;  // that prompts begin with
};

// `chunk_multiple`: the executor's; 0: any.
Swarm MakeSwarm(Random& random, int64_t chunk_multiple);

// A request as the swarm's clients send them, without an id.
Request MakeRequest(const Swarm& swarm, Seconds now, Random& random);
// Makes the request invalid in a random way, and returns the code with which Submit must refuse it.
absl::StatusCode SpoilRequest(const Swarm& swarm, Random& random, Request* request);

}  // namespace fox::sim
