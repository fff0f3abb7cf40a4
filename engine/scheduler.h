// Scheduler: which sequences run next and how many of their tokens. Pure: depends on the sequences
// given, on `now` and on the results collected; no clock, no I/O. Read scheduler.cc next.
//
// Plans may be made while earlier ones are in flight. Plans run in order, so a slot released by one
// may be used by the same one. A sequence is planned again at once where the executor samples its
// token (Sequence::pending), else when the host has sampled it.
//
// Order is (priority, arrival), everywhere. Running sequences come before waiting ones, sequences
// with one token left (decode) before longer ones (prefill). Pages are promised in order: who
// comes earlier preempts who comes later, so the first running sequence is never preempted and
// nothing starves. A plan never asks for more pages than are known to be free.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/page_ledger.h"
#include "engine/sequence.h"
#include "engine/step_executor.h"
#include "engine/step_plan.h"

namespace fox {

struct Schedule {
  StepPlan plan;
  std::vector<Sequence*> sequences;  // of plan.sequences, in that order
  std::vector<Sequence*> exhausted;  // ran alone and the pool is too small; removed already
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  // A paused sequence keeps its pages this long against waiting ones. Running ones take them at
  // once when they need them.
  static constexpr Seconds kPauseGrace = 1.0;

  explicit Scheduler(const ExecutorLimits& limits);

  // Queues a sequence at its place in the order. It must live until Remove, or until it is
  // reported exhausted.
  void Add(Sequence* sequence);

  // Forgets a sequence; the next plan releases its slot, if it has one.
  void Remove(Sequence* sequence);

  // Plans the next step and counts its tokens as computed. A plan that is not empty is in flight
  // from then on.
  Schedule Next(Seconds now);

  // The oldest plan in flight has run. Its sequences are the caller's: see
  // Sequence::OnStepCollected.
  void Collect(const StepResult& result) { ledger_.Collect(result); }

  // Whether the next plan has slots to release.
  bool has_pending_release() const { return !release_slots_.empty(); }

 private:
  struct Earlier {
    bool operator()(const Sequence* a, const Sequence* b) const { return RunsBefore(*a, *b); }
  };
  // What is left in the plan being made.
  struct Budget {
    int64_t tokens = 0;
    int64_t logit_rows = 0;
  };
  // What the running sequences may still ask of the pool.
  struct Demand {
    int64_t promised = 0;  // pages to the end of their known tokens
    int64_t running = 0;   // each keeps room for one more page row
  };

  void ReleaseSlot(Sequence* sequence);
  void Preempt(Sequence* sequence, Schedule* schedule);
  Sequence* SelectVictim(const Sequence& requester) const;
  std::vector<Sequence*> ReservePages(Schedule* schedule);
  bool Fits(const Sequence& next, const Demand& demand, int64_t pages) const;
  bool MakeRoom(const Sequence& next, Seconds now, Demand* demand, Schedule* schedule);
  void Admit(Seconds now, Budget* budget, Schedule* schedule);
  int64_t ChunkSize(const Sequence& sequence, const Budget& budget) const;
  void Plan(Sequence* sequence, int64_t count, Seconds now, Budget* budget, Schedule* schedule);

  const ExecutorLimits limits_;
  const int64_t max_running_;
  std::set<Sequence*, Earlier> running_;  // hold a slot, paused ones included
  std::set<Sequence*, Earlier> waiting_;
  std::vector<int32_t> free_slots_;     // descending: the lowest is taken first
  std::vector<int32_t> release_slots_;  // for the next plan
  PageLedger ledger_;
  int64_t pages_ = 0;  // within Next: free when the plan starts and not yet promised
};

}  // namespace fox
