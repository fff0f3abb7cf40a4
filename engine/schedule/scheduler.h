// Scheduler: which sequences run next and how many of their tokens. Pure: depends on the sequences
// given, on `now` and on the results collected; no clock, no I/O. Read waiting_queue.h next.
// Steps are planned in scheduler.cc, running slots given in scheduler_admission.cc, swaps decided
// in scheduler_swap.cc.
//
// Plans may be made while earlier ones are in flight. Plans run in order, so a slot released by one
// may be used by the same one. A sequence is planned again at once where the executor samples its
// token (Sequence::pending), else when the host has sampled it.
//
// A sequence waits for a running slot, runs, or is paused. Slots are given by turns (WaitingQueue);
// those that run are in the order of RunsBefore: by when they started. Decodes come before prompts.
// Pages are promised in order: an earlier sequence preempts a later one, so the first running
// sequence is never preempted, and one preempted kMaxPreemptions times comes first: nothing
// starves. A plan never asks for more pages than are known to be free.
//
// A sequence starts when the pages that PageForecast expects it to keep fit (or all that its prompt
// could take: KvAdmission). A prompt is fed in chunks that leave every other sequence room for a
// page row. One that finds none waits with its pages while others move, and then preempts.
//
// A paused sequence gives its running slot up at once, but keeps slot and pages until others have
// no room without them. So does one that runs while a client is due a running slot and none is
// free.
//
// A preempted sequence is swapped out to host memory where that is cheaper than to compute it again
// and there is room (SwapSpace), and comes back when all of its pages are free, in the same order
// as others. If swap space is full, it displaces the swapped sequence that would resume last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "engine/request/engine_options.h"
#include "engine/schedule/page_demand.h"
#include "engine/schedule/page_forecast.h"
#include "engine/schedule/page_ledger.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"
#include "engine/schedule/step_executor.h"
#include "engine/schedule/step_plan.h"
#include "engine/schedule/swap_space.h"
#include "engine/schedule/waiting_queue.h"

namespace fox {

struct Schedule {
  StepPlan plan;
  std::vector<Sequence*> sequences;  // of plan.sequences, in that order
  // Removed already:
  std::vector<Sequence*> does_not_fit;     // ran alone and the pool is too small
  std::vector<Sequence*> misses_deadline;  // could not start early enough for their deadlines
  std::vector<Sequence*> paused;           // since this plan: not removed
  bool best_effort = false;                // slow readers may be in the plan, beside others
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  // How long a request without room at its turn is passed over by requests that fit; a running
  // prompt without room lets others go on as long.
  static constexpr Seconds kBackfilling = 5.0;
  static constexpr int kMostPassedOver = 16;  // a step
  // Beside others, sequences whose readers have fallen behind keep one slot in so many, and run
  // with best effort (ServiceTimes::BestEffortTurn): their contexts may be long, and no client
  // waits for their tokens.
  static constexpr int64_t kSlowShare = 8;

  // The oldest prefill goes first in at least one of so many steps in which it could run:
  // it must end.
  static constexpr int kEarliestTurn = 8;

  // `times` must outlive the scheduler.
  Scheduler(const ExecutorLimits& limits, const ServiceTimes& times,
            const EngineOptions& options = {});

  // Queues a sequence. It must live until Remove, or until it is reported as removed.
  void Add(Sequence* sequence, Seconds now);

  // Forgets a sequence; the next plan releases its slot, if it has one. `keep`: what it has
  // computed is right, and may be kept for others that begin alike.
  void Remove(Sequence* sequence, bool keep = false);

  // The sequence is not paused() any more: it waits for a running slot, with its pages if it still
  // has them, else behind all that wait.
  void Resume(Sequence* sequence, Seconds now);

  // Plans the next step and counts its tokens as computed. A plan that is not empty is in flight
  // from then on.
  Schedule Next(Seconds now);

  // The oldest plan in flight has run; it was `plan`. Its sequences are the caller's: see
  // Sequence::OnStepCollected.
  void Collect(const StepPlan& plan, const StepResult& result);

  // The next plan drops all snapshots.
  void FlushPrefixes() { prefixes_.Flush(); }
  const PrefixCache& prefixes() const { return prefixes_; }
  // Pages of snapshots, which sequences may have, too.
  int64_t shared_pages() const { return ledger_.shared(); }

  // Sequences that are swapped out, and the bytes that they have.
  int64_t swapped() const { return static_cast<int64_t>(swapped_.size()); }
  int64_t swap_used() const { return swap_space_.used(); }

  // Whether the next plan has slots to release, or to share.
  bool has_pending_release() const { return !release_slots_.empty() || prefixes_.has_pending(); }

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t paused() const { return paused_; }
  const WaitingQueue& waiting() const { return waiting_; }
  // How many run at once.
  int64_t max_running() const { return max_running_; }
  std::vector<Work> RunningWork() const;

 private:
  // What is left in the plan being made.
  struct Budget {
    int64_t tokens = 0;
    int64_t prefill = 0;  // of them
    int64_t logit_rows = 0;
    bool best_effort = true;  // whether slow readers may be in it
  };

  void ReleaseSlot(Sequence* sequence, bool keep = false);
  void Rest(Sequence* sequence);
  void Pause(Sequence* sequence, Schedule* schedule);
  void Preempt(Sequence* sequence, Seconds now, Schedule* schedule);
  // Takes the pages of a sequence that has a slot and does not run.
  void TakePages(Sequence* holder, Seconds now, Schedule* schedule);
  int64_t PagesToGoOn(const Sequence& sequence) const;
  void SwapOut(Sequence* sequence, bool drops, Schedule* schedule);
  std::optional<SwapRange> TakeSwapRange(const Sequence& sequence, bool drops, int64_t bytes,
                                         Schedule* schedule);
  void ForgetSwapped(const Sequence* sequence);
  void DropSwapped(Sequence* sequence, StepPlan* plan);
  void SwapIn(Sequence* sequence, int32_t slot, Schedule* schedule);
  Sequence* SelectHolder(Seconds now) const;
  bool TakeFor(const Sequence& requester, Seconds now, Schedule* schedule);
  PageDemand::Of DemandOf(const Sequence& sequence) const;
  int64_t RoomForOthers(const Sequence& sequence) const;
  std::vector<Sequence*> ReservePages(Seconds now, bool first_must, Schedule* schedule);
  bool HasRoom(const Sequence& next, const PageDemand& demand, int64_t pages) const;
  bool HasRoomWithoutSnapshots(const Sequence& next, const PageDemand& demand, int64_t held);
  bool IsCountLow(const Sequence& next, int64_t held) const;
  bool MakeRoom(Sequence* next, const PageDemand& demand, Seconds now, Schedule* schedule);
  bool WaitsForPrefix(Sequence* next);
  int64_t max_slow() const { return std::max<int64_t>(1, max_running_ / kSlowShare); }
  void Yield(Sequence* sequence, Seconds now);
  void LimitSlowReaders(Seconds now);
  Sequence* SelectYielding(const Sequence& next, Seconds now) const;
  void YieldSlot(Seconds now);
  bool IsTooLarge(const Sequence& next) const;
  bool MissesDeadline(const Sequence& next, Seconds now) const;
  bool Start(Sequence* next, Seconds now, PageDemand* demand, Budget* budget, Schedule* schedule);
  void Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule);
  int64_t MostPrefill(const Budget& budget, int64_t decodes) const;
  void AdmitBeside(Seconds now, Budget* budget, Schedule* schedule);
  void PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                    Schedule* schedule);
  int64_t ChunkWithin(const Sequence& sequence, const Budget& budget, int64_t most) const;
  int64_t ChunkSize(const Sequence& sequence, const Budget& budget) const;
  void Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget, Schedule* schedule);

  const ExecutorLimits limits_;
  const ServiceTimes& times_;
  const double max_step_seconds_;
  const KvAdmission admission_;
  const double log_tolerance_;  // of sequences that have no stricter one
  const int64_t max_running_;
  std::set<Sequence*, RunsEarlier> running_;
  WaitingQueue waiting_;
  std::vector<Sequence*> holders_;  // have a slot and do not run
  int64_t paused_ = 0;
  int64_t steps_without_best_effort_ = 0;
  int64_t places_ = 0;
  std::vector<int32_t> free_slots_;     // descending: the lowest is taken first
  std::vector<int32_t> release_slots_;  // for the next plan
  PageLedger ledger_;
  PrefixCache prefixes_;
  SwapSpace swap_space_;
  std::vector<Sequence*> swapped_;
  std::vector<SwapRange> ranges_read_;  // within Next: by the plan that is being made
  PageForecast forecast_;
  std::vector<int64_t> taken_;  // within Next, by slot: pages that the plan takes
  int64_t pages_ = 0;           // within Next: free when the plan starts and not yet promised
};

}  // namespace fox
