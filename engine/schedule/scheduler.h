// Scheduler: decides which sequences run next and how many of their tokens. Pure: its plans depend
// on the sequences, on `now` and on the results collected. It is the mechanism, that is slots,
// pages and chunks; policy.h says which sequence goes first and which gives way. engine/README.md
// lists the steps of a plan. Plans run in order, and a plan may use a slot that it releases itself.
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
#include "engine/schedule/waiting_queue.h"

namespace fox {

inline constexpr char kTooLarge[] = "the page pool cannot hold this request";

struct Schedule {
  StepPlan plan;
  std::vector<Sequence*> sequences;                       // of plan.sequences, in that order
  std::vector<std::pair<Sequence*, absl::Status>> ended;  // already removed
  std::vector<Sequence*> paused;                          // by this plan; not removed
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
            const EngineOptions& options = {}, SnapshotStore* store = nullptr);
  // Queues a sequence, which must live until Remove, or until a plan reports it as ended.
  void Add(Sequence* sequence, Seconds now);
  // The next plan releases the sequence's slot, if it has one. `keep`: its computed tokens are
  // valid and may become a snapshot.
  void Remove(Sequence* sequence, bool keep = false);
  // Queues a sequence that is no longer paused().
  void Resume(Sequence* sequence, Seconds now);
  // Makes a plan and counts its tokens as computed. A plan that is not empty is in flight until
  // Collect.
  Schedule Next(Seconds now);
  // Takes the result of the oldest plan in flight, `plan`. REQUIRES: the caller then calls
  // Sequence::OnStepCollected for each sequence of the plan.
  void Collect(const StepPlan& plan, const StepResult& result);
  // Aborts if slots, states and counts contradict each other. Between two plans only.
  void Check() const;

  // See PrefixCache::Clear and SaveAll.
  void ClearPrefixes(const std::string& only) { prefixes_.Clear(only); }
  void SavePrefixes() { prefixes_.SaveAll(); }
  const PrefixCache& prefixes() const { return prefixes_; }
  // Pages of snapshots, including those shared with sequences.
  int64_t shared_pages() const { return ledger_.shared(); }
  // True if the next plan has slots to release or to share.
  bool has_pending_release() const { return !release_slots_.empty() || prefixes_.has_pending(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t paused() const { return paused_; }
  const WaitingQueue& waiting() const { return waiting_; }
  int64_t max_running() const { return max_running_; }
  Work RunningWork() const;  // remaining work of the running sequences

 private:
  // Tokens and rows that the plan being made may still take.
  struct Budget {
    int64_t tokens = 0;
    int64_t prefill = 0;  // tokens of prompts, a part of `tokens`
    int64_t logit_rows = 0;
    bool best_effort = true;  // the plan may have best-effort sequences

    void Add(int64_t count, int64_t rows) {
      tokens += count;
      prefill = std::min(prefill + count, tokens);
      logit_rows += rows;
    }
  };

  void End(Sequence* sequence, absl::Status status, Schedule* schedule);
  void ReleaseSlot(Sequence* sequence, bool keep = false);
  void StopRunning(Sequence* sequence);
  void StopButKeepSlot(Sequence* sequence);
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
  std::vector<Sequence*> ReservePages(Seconds now, Schedule* schedule);
  // Tokens of the answer that are still expected. Below 0: the answer is longer than most.
  double ExpectedLeft(const Sequence& sequence) const {
    return times_.ExpectedTokens(sequence.max_tokens) - static_cast<double>(sequence.produced());
  }
  double DemandOf(const Sequence& sequence) const;
  bool HasRoom(const Sequence& next, double demand, int64_t pages) const;
  bool HasRoomWithoutSnapshots(const Sequence& next, double demand, int64_t held);
  bool IsCountLow(const Sequence& next, int64_t held) const;
  bool MakeRoom(Sequence* next, double demand, Seconds now, Schedule* schedule);
  bool IsTooLarge(const Sequence& next) const;
  bool Start(Sequence* next, Seconds now, double* demand, Budget* budget, Schedule* schedule);
  bool TryToStart(Sequence* next, bool whole_prompts, Seconds now, double* demand, Budget* budget,
                  Schedule* schedule);
  void Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule);
  int64_t MaxPrefill(const Budget& budget, int64_t decodes, int64_t returns) const;
  int64_t ChunkWithin(const Sequence& sequence, const Budget& budget, int64_t max_tokens) const;
  int64_t ChunkSize(const Sequence& sequence, const Budget& budget) const;
  void Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget, Schedule* schedule);
  void PlanDrafts(const Budget& budget, Schedule* schedule) const;
  void PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                    Schedule* schedule);

  const ExecutorLimits limits_;
  const ServiceTimes& times_;
  const EngineOptions options_;
  const double log_tolerance_;  // for sequences without a stricter one
  const int64_t max_running_;
  std::set<Sequence*, RunsEarlier> running_;
  WaitingQueue waiting_;
  std::vector<Sequence*> slot_holders_;  // sequences with a slot that do not run
  int64_t paused_ = 0;
  Sequence* rescued_ = nullptr;
  Seconds rescued_at_ = -kNever;
  int64_t steps_without_best_effort_ = 0;
  int64_t places_ = 0;
  std::set<int32_t> free_slots_;
  std::vector<int32_t> release_slots_;  // for the next plan
  PageLedger ledger_;
  PrefixCache prefixes_;
  PageForecast forecast_;
  MaskShares masks_;
  int64_t pages_ = 0;  // within Next: pages free when the plan starts and not yet promised
};

}  // namespace fox
