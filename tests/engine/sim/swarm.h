// Swarm: what one seed of the simulation is like: sizes of executor and requests, and how often
// clients do what. Read simulation.h first.
#pragma once

#include <cstdint>
#include <random>

#include "engine/engine.h"
#include "tests/engine/sim/fake_executor.h"

namespace fox::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(Mix(seed, 0x5eed)) {}
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  bool Chance(double p) { return Unit() < p; }

 private:
  std::mt19937_64 engine_;
};

// Rates of one seed; each feature is switched off in some seeds, so that rare pairs meet.
struct Swarm {
  FakeOptions executor;
  EngineOptions engine;
  double submit = 0.3, cancel = 0.0, acknowledge = 0.5, step = 0.5;
  double deadlines = 0.0, windows = 0.0, sampled = 0.0, scored = 0.0, penalties = 0.0, nan = 0.0;
  double biased = 0.0;
  int64_t long_prompt = 0, short_prompt = 1, max_tokens = 1;
  int priorities = 1, clients = 1;
  double tick = 0.1;
};

inline Swarm MakeSwarm(Random& random) {
  Swarm swarm;
  ExecutorLimits& limits = swarm.executor.limits;
  limits.lists_per_slot = random.Int(1, 4);
  limits.max_num_seqs = static_cast<int32_t>(random.Int(1, 8));
  limits.num_slots = static_cast<int32_t>(random.Int(0, 12));
  limits.max_model_len = random.Chance(0.5) ? random.Int(20, 130) : random.Int(130, 520);
  const int64_t whole = limits.lists_per_slot * PagesFor(limits.max_model_len);
  limits.num_pages =
      random.Chance(0.3) ? random.Int(limits.lists_per_slot, whole) : random.Int(whole, 3 * whole);
  limits.max_num_batched_tokens = random.Chance(0.5) ? random.Int(1, 40) : random.Int(64, 300);
  limits.max_logit_rows = random.Chance(0.5) ? random.Int(1, 10) : random.Int(10, 64);
  limits.vocab_size = static_cast<int32_t>(random.Int(8, 40));
  limits.depth = random.Chance(0.3) ? 1 : random.Chance(0.8) ? 2 : 3;
  limits.samples_on_device = random.Chance(0.8);
  if (random.Chance(0.1)) swarm.executor.understated_pages = random.Int(1, limits.num_pages);
  if (random.Chance(0.7)) {
    swarm.executor.min_window = static_cast<int>(random.Int(0, 2));
    swarm.executor.max_window = swarm.executor.min_window + static_cast<int>(random.Int(0, 3));
  }
  swarm.engine.max_num_queued_reqs = random.Int(1, 30);
  swarm.engine.max_num_queued_tokens = random.Chance(0.2) ? limits.max_model_len : 1 << 20;
  swarm.engine.priority_scheduling = random.Chance(0.5);
  swarm.engine.max_queue_seconds = random.Chance(0.3) ? random.Unit() * 100 : 0;
  swarm.engine.stall_timeout = random.Chance(0.5) ? random.Unit() * 20 : 0;
  swarm.engine.max_paused_reqs = random.Int(0, 20);
  swarm.engine.max_step_seconds = random.Chance(0.5) ? random.Unit() : 0;
  if (random.Chance(0.5)) swarm.engine.eos_token_ids = {2};
  swarm.submit = random.Unit() * 0.4 + 0.02;
  swarm.step = random.Unit() * 0.6 + 0.2;
  swarm.acknowledge = random.Unit() * 0.5;
  if (random.Chance(0.6)) swarm.cancel = random.Unit() * 0.2;
  if (random.Chance(0.5)) swarm.deadlines = random.Unit();
  if (random.Chance(0.6)) swarm.windows = random.Unit();
  if (random.Chance(0.5)) swarm.sampled = random.Unit();
  if (random.Chance(0.5)) swarm.scored = random.Unit();
  if (random.Chance(0.4)) swarm.penalties = random.Unit();
  if (random.Chance(0.3)) swarm.biased = random.Unit();
  if (random.Chance(0.2)) swarm.nan = 0.1;
  swarm.short_prompt = random.Int(1, limits.max_model_len - 1);
  swarm.long_prompt = limits.max_model_len - 1;
  swarm.max_tokens = random.Int(1, 80);
  swarm.priorities = static_cast<int>(random.Int(1, 4));
  swarm.clients = static_cast<int>(random.Int(1, 5));
  swarm.tick = random.Chance(0.5) ? 0.01 : 0.4;
  if (random.Chance(0.1)) swarm.executor.fail_at_run = random.Int(0, 300);
  swarm.executor.fail_late = random.Chance(0.5);
  swarm.executor.nan_position = random.Int(0, limits.max_model_len);
  return swarm;
}

}  // namespace fox::sim
