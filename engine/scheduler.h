// Scheduler: which sequences run next and how many of their tokens. Pure: depends on the sequences
// given, on `now` and on the results collected; no clock, no I/O. Read waiting_queue.h next.
//
// Plans may be made while earlier ones are in flight. Plans run in order, so a slot released by one
// may be used by the same one. A sequence is planned again at once where the executor samples its
// token (Sequence::pending), else when the host has sampled it.
//
// A sequence waits for a seat, runs, or is paused. Seats are given by turns (WaitingQueue); those
// that run are in the order of RunsBefore: by when they started. Decodes (one token left) come
// before longer ones (prefill). Pages are promised in order: who comes earlier preempts who comes
// later, so the first running sequence is never preempted, and who was preempted kMostLosses times
// comes first: nothing starves. A plan never asks for more pages than are known to be free.
//
// A paused sequence gives its seat up at once, but keeps slot and pages until somebody else has no
// room without them.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/page_ledger.h"
#include "engine/sequence.h"
#include "engine/service_times.h"
#include "engine/step_executor.h"
#include "engine/step_plan.h"
#include "engine/waiting_queue.h"

namespace fox {

struct Schedule {
  StepPlan plan;
  std::vector<Sequence*> sequences;  // of plan.sequences, in that order
  // Removed already:
  std::vector<Sequence*> exhausted;  // ran alone and the pool is too small
  std::vector<Sequence*> hopeless;   // could not start early enough for their deadlines
  std::vector<Sequence*> paused;     // since this plan: not removed
  bool guests = false;               // who reads slowly may be in the plan, beside others
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  // Who finds no room at its turn is overtaken by those who do, for so long.
  static constexpr Seconds kOvertaking = 5.0;
  static constexpr int kMostPassedOver = 16;  // a step
  // Beside others, sequences whose readers have fallen behind hold one seat in so many, and run as
  // guests (ServiceTimes::GuestTurn): their contexts may be long, and they are given what nobody
  // waits for.
  static constexpr int64_t kSlowShare = 8;

  // Of the steps in which the prefill that started earliest could run, it is first in one of so
  // many.
  static constexpr int kEarliestTurn = 8;

  // Prompts are cut so that a step takes about `max_step_seconds` (0: no limit) by `times`, which
  // must outlive the scheduler.
  Scheduler(const ExecutorLimits& limits, const ServiceTimes& times, double max_step_seconds = 0);

  // Queues a sequence. It must live until Remove, or until it is reported as removed.
  void Add(Sequence* sequence, Seconds now);

  // Forgets a sequence; the next plan releases its slot, if it has one.
  void Remove(Sequence* sequence);

  // The sequence is not paused() any more: it waits for a seat, with its pages if it still has
  // them, else behind all that wait.
  void Resume(Sequence* sequence, Seconds now);

  // Plans the next step and counts its tokens as computed. A plan that is not empty is in flight
  // from then on.
  Schedule Next(Seconds now);

  // The oldest plan in flight has run. Its sequences are the caller's: see
  // Sequence::OnStepCollected.
  void Collect(const StepResult& result) { ledger_.Collect(result); }

  // Whether the next plan has slots to release.
  bool has_pending_release() const { return !release_slots_.empty(); }

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t paused() const { return paused_; }
  const WaitingQueue& waiting() const { return waiting_; }
  // How many run at once.
  int64_t seats() const { return max_running_; }
  std::vector<Work> RunningWork() const;

 private:
  // What is left in the plan being made.
  struct Budget {
    int64_t tokens = 0;
    int64_t prefill = 0;  // of them
    int64_t logit_rows = 0;
    bool guests = true;  // whether who reads slowly may be in it
  };
  // What the running sequences may still ask of the pool.
  struct Demand {
    int64_t promised = 0;  // pages to the end of their known tokens
    int64_t running = 0;   // each keeps room for one more page row
  };

  void ReleaseSlot(Sequence* sequence);
  void Rest(Sequence* sequence, Schedule* schedule);
  void Pause(Sequence* sequence, Schedule* schedule);
  void Preempt(Sequence* sequence, Seconds now, Schedule* schedule);
  // Takes the pages of a sequence that has a slot and does not run.
  void TakePages(Sequence* holder, Seconds now, Schedule* schedule);
  Sequence* SelectHolder(Seconds now) const;
  bool TakeFor(const Sequence& requester, Seconds now, Schedule* schedule);
  int64_t PromisedTo(const Sequence& sequence) const;
  std::vector<Sequence*> ReservePages(Seconds now, Schedule* schedule);
  bool HasRoom(const Sequence& next, const Demand& demand, int64_t pages) const;
  bool HasRoomForChunks(const Sequence& next, const Demand& demand) const;
  bool MakeRoom(Sequence* next, const Demand& demand, Seconds now, Schedule* schedule);
  bool IsHopeless(const Sequence& next, Seconds now) const;
  bool Start(Sequence* next, Seconds now, Demand* demand, Budget* budget, Schedule* schedule);
  void Admit(Seconds now, bool whole_prompts, Budget* budget, Schedule* schedule);
  void PlanPrefills(std::vector<Sequence*> prefills, Seconds now, Budget* budget,
                    Schedule* schedule);
  int64_t ChunkSize(const Sequence& sequence, const Budget& budget) const;
  void Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget, Schedule* schedule);

  const ExecutorLimits limits_;
  const ServiceTimes& times_;
  const double max_step_seconds_;
  const int64_t max_running_;
  std::set<Sequence*, RunsEarlier> running_;
  WaitingQueue waiting_;
  std::vector<Sequence*> holders_;  // have a slot and do not run
  int64_t paused_ = 0;
  int64_t steps_without_guests_ = 0;
  Sequence* by_chunks_ = nullptr;  // the one running sequence with that mark
  int64_t places_ = 0;
  std::vector<int32_t> free_slots_;     // descending: the lowest is taken first
  std::vector<int32_t> release_slots_;  // for the next plan
  PageLedger ledger_;
  int64_t pages_ = 0;  // within Next: free when the plan starts and not yet promised
};

}  // namespace fox
