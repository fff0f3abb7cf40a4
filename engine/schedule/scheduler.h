// Scheduler: which sequences run next and how many of their tokens. Pure: depends on the sequences
// given, on `now` and on the results collected. It is the mechanism: slots, pages and chunks; what
// comes first and what gives way is the policy's (policy.h). engine/README.md tells it in order.
// Plans run in order, so a slot released by one may be used by the same one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/engine_options.h"
#include "engine/request/step_executor.h"
#include "engine/request/step_plan.h"
#include "engine/schedule/mask_shares.h"
#include "engine/schedule/page_budget.h"
#include "engine/schedule/policy.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "engine/schedule/swap_space.h"
#include "engine/schedule/waiting_queue.h"

namespace fox {

inline constexpr char kTooLarge[] = "the page pool cannot hold this request";

struct Schedule {
  StepPlan plan;
  std::vector<Sequence*> sequences;                       // of plan.sequences, in that order
  std::vector<std::pair<Sequence*, absl::Status>> ended;  // removed already
  std::vector<Sequence*> paused;                          // since this plan: not removed
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
            const EngineOptions& options = {});
  // Queues a sequence, which must live until Remove, or until it is reported as ended.
  void Add(Sequence* sequence, Seconds now);
  // The next plan releases its slot, if it has one. `keep`: what it has computed is right, and may
  // be kept for others that begin alike.
  void Remove(Sequence* sequence, bool keep = false);
  // The sequence is not paused() any more.
  void Resume(Sequence* sequence, Seconds now);
  // Counts the tokens of the plan as computed. If it is not empty it is in flight until Collect.
  Schedule Next(Seconds now);
  // The oldest plan in flight, `plan`, has run. Then see Sequence::OnStepCollected.
  void Collect(const StepPlan& plan, const StepResult& result);

  // The next plan drops all snapshots.
  void FlushPrefixes() { prefixes_.Flush(); }
  const PrefixCache& prefixes() const { return prefixes_; }
  // Pages of snapshots, which sequences may have, too.
  int64_t shared_pages() const { return ledger_.shared(); }
  const SwapSpace& swap_space() const { return swap_space_; }
  // Whether the next plan has slots to release, or to share.
  bool has_pending_release() const { return !release_slots_.empty() || prefixes_.has_pending(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t paused() const { return paused_; }
  const WaitingQueue& waiting() const { return waiting_; }
  int64_t max_running() const { return max_running_; }
  Work RunningWork() const;  // what is left to do

 private:
  // Of the plan being made.
  struct Budget {
    int64_t tokens = 0;
    int64_t prefill = 0;  // of them
    int64_t logit_rows = 0;
    bool best_effort = true;  // whether best-effort sequences may be in it

    void Add(int64_t count, int64_t rows) {
      tokens += count;
      prefill = std::min(prefill + count, tokens);
      logit_rows += rows;
    }
  };

  void End(Sequence* sequence, absl::Status status, Schedule* schedule);
  void ReleaseSlot(Sequence* sequence, bool keep = false);
  void StopRunning(Sequence* sequence);
  void Rest(Sequence* sequence);
  void Pause(Sequence* sequence, Schedule* schedule);
  void Yield(Sequence* sequence, Seconds now);
  void SetRescued(Sequence* sequence, bool rescued);
  void RescueOne(Seconds now);
  void PauseFullReaders(Schedule* schedule);
  void LimitBestEffort(Seconds now);
  void YieldSlot(Seconds now);
  void Preempt(Sequence* sequence, Seconds now, Schedule* schedule);
  bool TakeFor(const Sequence& requester, Seconds now, Schedule* schedule);
  int64_t PagesToGoOn(const Sequence& sequence) const;
  int64_t RoomForOthers(const Sequence& sequence) const;
  std::vector<Sequence*> ReservePages(Seconds now, bool first_must, Schedule* schedule);
  // Tokens of its answer that are expected still; below 0: it is longer than others.
  double ExpectedLeft(const Sequence& sequence) const {
    return times_.ExpectedTokens(sequence.max_tokens) - static_cast<double>(sequence.produced());
  }
  double DemandOf(const Sequence& sequence) const;
  bool HasRoom(const Sequence& next, double demand, int64_t pages) const;
  bool HasRoomWithoutSnapshots(const Sequence& next, double demand, int64_t held);
  bool IsCountLow(const Sequence& next, int64_t held) const;
  bool MakeRoom(Sequence* next, double demand, Seconds now, Schedule* schedule);
  bool IsTooLarge(const Sequence& next) const;
  void SwapOut(Sequence* sequence, StepPlan* plan);
  void SwapIn(Sequence* sequence, int32_t slot, StepPlan* plan);
  bool Start(Sequence* next, Seconds now, double* demand, Budget* budget, Schedule* schedule);
  bool TryToStart(Sequence* next, bool whole_prompts, Seconds now, double* demand, Budget* budget,
                  Schedule* schedule);
  void Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule);
  int64_t MostPrefill(const Budget& budget, int64_t decodes) const;
  int64_t ChunkWithin(const Sequence& sequence, const Budget& budget, int64_t most) const;
  int64_t ChunkSize(const Sequence& sequence, const Budget& budget) const;
  void Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget, Schedule* schedule);
  void PlanDrafts(const Budget& budget, Schedule* schedule) const;
  void PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                    Schedule* schedule);

  const ExecutorLimits limits_;
  const ServiceTimes& times_;
  const EngineOptions options_;
  const double log_tolerance_;  // of sequences that have no stricter one
  const int64_t max_running_;
  std::set<Sequence*, RunsEarlier> running_;
  WaitingQueue waiting_;
  std::vector<Sequence*> holders_;  // have a slot and do not run
  int64_t paused_ = 0;
  Sequence* rescued_ = nullptr;
  Seconds rescued_at_ = -kNever;
  int64_t steps_without_best_effort_ = 0;
  int64_t places_ = 0;
  std::set<int32_t> free_slots_;
  std::vector<int32_t> release_slots_;  // for the next plan
  PageLedger ledger_;
  PrefixCache prefixes_;
  SwapSpace swap_space_;
  PageForecast forecast_;
  MaskShares masks_;
  int64_t pages_ = 0;  // within Next: free when the plan starts and not yet promised
};

}  // namespace fox
