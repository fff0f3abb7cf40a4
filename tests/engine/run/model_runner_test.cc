// ModelRunner beside what it computes: faults of the backend, kept windows, certificates.
#include "engine/run/model_runner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/engine/random_streams.h"
#include "tests/engine/sim/page_audit.h"

namespace fox {
namespace {

StepPlan OneToken(int64_t position) {
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 0;
  sequence.position = position;
  sequence.log_tolerance = -10;
  sequence.token_ids = {1};
  sequence.logit_rows = {0};
  return plan;
}

TEST(ModelRunnerTest, APoolFaultIsUnavailableFromThenOn) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE((*runner)->Submit(OneToken(0)).ok());
  EXPECT_TRUE((*runner)->Collect().ok());
  *(*runner)->cache().pool_fault = PoolFault::kOverdrawn;
  for (int64_t position : {1, 2}) {
    ASSERT_TRUE((*runner)->Submit(OneToken(position)).ok());
    EXPECT_EQ((*runner)->Collect().status(),
              absl::UnavailableError("page pool: a step took more pages than were free"));
  }
}

// Three pages of it, and a bound so loose that heads forget.
TEST(ModelRunnerTest, WindowsAreThoseOfTheCacheWherePlansAskForThem) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 1;
  sequence.log_tolerance = -0.01;
  sequence.token_ids.assign(5 * kPageTokens, 1);
  absl::StatusOr<StepResult> result = (*runner)->Run(plan);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->first_pages, nullptr);

  sequence.position = 5 * kPageTokens;
  plan.read_windows = true;
  result = (*runner)->Run(plan);
  ASSERT_TRUE(result.ok());
  ASSERT_NE(result->first_pages, nullptr);
  const int64_t lists = (*runner)->limits().lists_per_slot;
  const std::vector<int32_t> read(result->first_pages + lists, result->first_pages + 2 * lists);
  EXPECT_EQ(read, FirstLive((*runner)->cache(), (*runner)->ops(), 1));
  EXPECT_EQ(std::accumulate(read.begin(), read.end(), int64_t{0}), result->stats[0].pages_evicted);
  EXPECT_GT(result->stats[0].pages_evicted, 0);
  EXPECT_EQ(result->first_pages[0], 0);  // of the empty slot before it
}

// What is known of a slot after `tokens` from `position` on, fed once `moves` have made it ready.
AcpStats Feed(ModelRunner& runner, StepPlan moves, int32_t slot, int64_t position,
              std::vector<int32_t> tokens) {
  PlannedSequence& sequence = moves.sequences.emplace_back();
  sequence.slot = slot;
  sequence.position = position;
  sequence.log_tolerance = -10;
  sequence.token_ids = std::move(tokens);
  const absl::StatusOr<StepResult> result = runner.Run(moves);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->stats[0] : AcpStats();
}

// What a donor evicted before it was swapped out counts for all that start from its snapshot, where
// no later eviction has as large a mass.
TEST(ModelRunnerTest, ASnapshotOfASwappedSlotKeepsItsCertificate) {
  EngineConfig config = GoldenConfig("dev_pro_d64");
  config.dtype = "f32";
  config.plain_gemm = true;
  config.runner.snapshot_slots = 1;
  config.swap_space_bytes = 64 << 20;
  auto loaded = LoadRunner(config);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelRunner& runner = **loaded;
  std::mt19937_64 rng(3);
  const auto random = [&rng](int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 512);
    return tokens;
  };
  const int64_t before = 5 * kPageTokens, after = 6 * kPageTokens;
  const std::vector<int32_t> early = random(before), late = random(after - before);
  const int32_t donor = 0, back = 1, heir = 2, alone = 3, snapshot = runner.limits().slots();

  const AcpStats left = Feed(runner, {}, donor, 0, early);
  StepPlan out;
  out.swap_outs = {{donor, 0, left.live_pages(), before}};
  out.release_slots = {donor};
  ASSERT_TRUE(runner.Run(out).ok());
  StepPlan in;
  in.swap_ins = {{back, 0, left.live_pages(), before, left.max_log_evicted_mass}};
  Feed(runner, in, back, before, late);
  StepPlan start;
  start.snapshots = {{back, snapshot, after}};
  start.starts = {{snapshot, heir, after}};
  const AcpStats inherited = Feed(runner, start, heir, after, {1});

  std::vector<int32_t> all = early;
  all.insert(all.end(), late.begin(), late.end());
  const AcpStats fresh = Feed(runner, {}, alone, 0, all);
  EXPECT_GT(fresh.pages_evicted, left.pages_evicted);
  EXPECT_EQ(fresh.max_log_evicted_mass, left.max_log_evicted_mass);  // all later ones are smaller
  EXPECT_EQ(inherited.max_log_evicted_mass, fresh.max_log_evicted_mass);
  EXPECT_EQ(inherited.pages_evicted, fresh.pages_evicted);
}

}  // namespace
}  // namespace fox
