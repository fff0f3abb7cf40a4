// FakeExecutor: a StepExecutor with teeth. Every head of every sequence writes a hash of (request,
// head, position, token) through its own page list; the next token is a fold of exactly the live
// slots read back through the lists, so a stale, foreign, missing or swapped page changes tokens.
// It checks each plan against its limits and audits its pool. A plan is computed when it is
// submitted and seen when it is collected, so with depth 2 its owner plans on old news, as over a
// real device. Read reference_model.h next.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "engine/step_executor.h"
#include "kernels/paged_kv.h"
#include "tests/engine/sim/slot_sampler.h"

namespace fox::sim {

// Planted bugs of the computing side; each must be found by the simulation.
enum class ExecutorBug {
  kNone,
  kLeakOnRelease,    // a released list keeps its last page
  kDoubleFree,       // an evicted page is pushed twice
  kSwapHeads,        // now and then two heads of a slot swap lists
  kEvictEarly,       // one page too many
  kForgetToEvict,    // a page that should go stays
  kSkipFirstOfPage,  // the first key of a page is not written
  kStaleSlot,        // a release is forgotten
  kOverstateFree,    // reports pages that do not exist
  kOverstateLive,    // reports more live pages than a slot has
  kForeignPage,      // a list takes over another list's page
  kWrongLogitRows,   // rows of two sequences are swapped
  kStaleSample,      // a sampled token is delivered but not kept: an older one is fed
  kSwapSamples,      // sampled tokens of two sequences are swapped
  kStaleStates,      // a slot keeps the token states it had
  kForgetCount,      // a sampled token is not counted
};

struct FakeOptions {
  ExecutorLimits limits;
  // Pages a head keeps before the current one, sampled per (request, head, page) from
  // [min_window, max_window]; a negative max_window: nothing is evicted.
  int min_window = 0;
  int max_window = -1;
  int64_t fail_at_run = -1;  // this plan and all later ones fail,
  bool fail_late = false;    // when they are collected
  // A plan that overdraws the pool fails when it is collected, as a device's does; false: it is a
  // violation.
  bool reports_pool_faults = false;
  int64_t understated_pages = 0;    // up to that many free pages are not reported
  std::set<uint64_t> nan_requests;  // their rows of position >= nan_position hold a NaN
  int64_t nan_position = 0;
  std::map<uint64_t, int64_t> max_lengths;  // tokens that a request may be fed; others: any
  ExecutorBug bug = ExecutorBug::kNone;
};

uint64_t Mix(uint64_t a, uint64_t b);
uint64_t KeyHash(uint64_t request, int64_t head, int64_t position, int32_t token);
uint64_t Fold(uint64_t state, uint64_t key);
// What a head keeps before the page that ends at `end` tokens: a pure function.
int WindowPages(const FakeOptions& options, uint64_t request, int64_t head, int64_t end);
// A row of logits whose largest is at fold % vocab.
void FillLogits(uint64_t fold, float* row, int32_t vocab);

class FakeExecutor : public StepExecutor {
 public:
  explicit FakeExecutor(FakeOptions options);

  const ExecutorLimits& limits() const override { return options_.limits; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override;

  // The first violation seen by a plan check or the audit; empty: none.
  const std::string& violation() const { return violation_; }
  void Audit();
  int64_t free_pages() const { return static_cast<int64_t>(free_stack_.size()); }
  int64_t collected_free_pages() const { return collected_free_pages_; }  // after that plan
  int64_t occupied_slots() const;
  int64_t runs() const { return runs_; }
  int64_t in_flight() const { return static_cast<int64_t>(computed_.size()); }
  int64_t evictions() const { return evictions_; }
  int64_t samples() const { return samples_; }
  int64_t fed_samples() const { return fed_samples_; }  // tokens fed before they were collected
  int64_t processed_samples() const {
    return processed_samples_;
  }  // of those: from processed logits
  // Token states that came with counts of generated tokens.
  int64_t restored_states() const { return restored_states_; }
  // Requests that came back after their slot had been released with a plan in flight.
  int64_t returns() const { return returns_; }
  void Forget(uint64_t request) { released_in_flight_.erase(request); }  // its id comes again
  FakeOptions& options() { return options_; }

 private:
  using Page = std::array<uint64_t, kPageTokens>;
  struct List {
    int64_t first_live = 0;      // page index
    std::vector<int32_t> pages;  // by page index; -1 where freed
  };
  struct Slot {
    bool occupied = false;
    uint64_t request = 0;
    int64_t length = 0;
    std::vector<List> lists;
    AcpStats stats;
    SlotSampler sampler;
    bool has_states = false;  // of this request
    int32_t sampled = 0;
    int64_t sampled_at = -1;  // run
    int64_t used_at = -1;
  };
  struct Computed {
    StepResult result;
    std::vector<float> logits;
    std::vector<int32_t> first_pages;
    int64_t free_pages = 0;
    absl::Status status;
  };

  void Violate(const std::string& what);
  // The fault of the pool, if the plan causes one.
  absl::Status CheckPlan(const StepPlan& plan);
  void CheckSequence(const PlannedSequence& sequence);
  void SetPenaltyState(const StepPlan& plan);
  void Compute(const StepPlan& plan, Computed* computed);
  void ComputeRows(const PlannedSequence& sequence, float* logits);
  absl::StatusOr<SampledToken> Sample(const PlannedSequence& sequence, const float* row,
                                      Slot* slot);
  void SpoilResult(StepResult* result);
  // Whether a run was before the current one and is not collected yet.
  bool InFlight(int64_t run) const {
    return run < runs_ && run > runs_ - static_cast<int64_t>(computed_.size());
  }
  void Release(Slot* slot);
  void AppendTokens(const PlannedSequence& sequence, Slot* slot);
  int32_t Allocate(Slot* slot);
  void Free(List* list, int64_t page_index);
  void Evict(int64_t end, Slot* slot);
  uint64_t FoldSlot(const Slot& slot, int64_t position) const;
  bool Strike() { return ++bug_clock_ % 3 == 0; }  // planted bugs act now and then

  FakeOptions options_;
  std::vector<Page> pool_;
  std::vector<int32_t> owner_;  // list index or -1
  std::vector<int32_t> free_stack_;
  std::vector<Slot> slots_;
  Sampler sampler_;
  absl::Status pool_fault_;
  std::deque<Computed> computed_;  // submitted and not collected, the oldest first
  std::vector<float> delivered_;   // logits of the last plan collected
  std::vector<int32_t> delivered_pages_;
  int64_t collected_free_pages_;
  std::set<uint64_t> released_in_flight_;  // requests
  int64_t runs_ = 0;
  int64_t evictions_ = 0;
  int64_t samples_ = 0;
  int64_t fed_samples_ = 0;
  int64_t processed_samples_ = 0;
  int64_t restored_states_ = 0;
  int64_t returns_ = 0;
  uint64_t bug_clock_ = 0;
  std::string violation_;
};

}  // namespace fox::sim
