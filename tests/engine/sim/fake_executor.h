// FakeExecutor: a StepExecutor with teeth, over the real page pool (paged_keys.h). The next token
// is a function of exactly the live keys, read back through the page tables. It checks each plan
// against its limits. A plan is computed when it is submitted and seen when it is collected, so
// with depth 2 its owner plans on old news, as over a real device. Read reference_model.h next.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/sampler.h"
#include "engine/request/step_executor.h"
#include "tests/engine/sim/fake_keys.h"
#include "tests/engine/sim/paged_keys.h"
#include "tests/engine/sim/slot_sampler.h"

namespace fox::sim {

class FakeExecutor : public StepExecutor {
 public:
  explicit FakeExecutor(FakeOptions options);

  const ExecutorLimits& limits() const override { return options_.limits; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override;
  std::byte* StagingBuffer(int32_t buffer) override {
    return staging_.at(static_cast<size_t>(buffer)).data();
  }

  // The first violation seen by a plan check or the audit; empty: none.
  const std::string& violation() const { return violation_; }
  void Audit();
  int64_t free_pages() const { return keys_.free_pages(); }
  int64_t collected_free_pages() const { return collected_free_pages_; }  // after that plan
  int64_t occupied_slots() const { return occupied_slots_; }              // of sequences
  int64_t snapshots() const { return snapshots_; }
  // Pages that only this slot holds after all plans submitted.
  int64_t sole_pages(int32_t slot) const { return keys_.sole_pages()[slot]; }
  int64_t runs() const { return runs_; }
  int64_t in_flight() const { return static_cast<int64_t>(computed_.size()); }
  int64_t last_tokens() const { return last_tokens_; }  // of the plan submitted last
  const PageCounts& pages() const { return keys_.counts(); }
  int64_t samples() const { return samples_; }
  int64_t fed_samples() const { return fed_samples_; }  // tokens fed before they were collected
  // Samples from processed logits.
  int64_t processed_samples() const { return processed_samples_; }
  // Token states that came with counts of generated tokens.
  int64_t restored_states() const { return restored_states_; }
  // Requests that came back after their slot had been released with a plan in flight.
  int64_t returns() const { return returns_; }
  void Forget(uint64_t request) { released_in_flight_.erase(request); }  // its id comes again
  FakeOptions& options() { return options_; }

 private:
  struct Slot {
    bool occupied = false;
    uint64_t request = 0;
    int64_t length = 0;
    KeyChain keys, page_end_keys;  // after its tokens, and at the last page end
    SlotSampler sampler;
    bool has_states = false;  // of this request
    bool decodes = false;     // its prompt is over, where chunks matter
    int32_t sampled = 0;
    int64_t sampled_at = -1;  // run
    int64_t used_at = -1;
    int64_t planned_at = -1;
  };
  using Image = std::vector<std::byte>;
  struct Computed {
    StepResult result;
    std::vector<float> logits;
    std::vector<SampleRecord> scores;
    std::vector<int32_t> first_pages, sole_pages;
    std::vector<std::pair<int32_t, Image>> saved, loaded;  // by buffer
    int64_t free_pages = 0;
    absl::Status status;
  };

  void Violate(const std::string& what);
  absl::Status Take(const StepPlan& plan, Computed* computed);
  // The fault of the pool, if the plan causes one.
  absl::Status CheckPlan(const StepPlan& plan);
  void CheckMixture(const StepPlan& plan);
  void CheckChunk(const PlannedSequence& sequence, Slot* slot);
  void CheckSequence(const PlannedSequence& sequence);
  void CheckSample(const PlannedSequence& sequence, const Slot& slot);
  int32_t all_slots() const { return static_cast<int32_t>(slots_.size()); }
  void Save(const std::vector<SlotTransfer>& saves, Computed* computed);
  void Load(const std::vector<SlotTransfer>& loads, Computed* computed);
  bool IsTransfer(const SlotTransfer& transfer);
  void DropSnapshots(const std::vector<int32_t>& slots);
  void Release(const std::vector<int32_t>& slots);
  void TakeSnapshots(const std::vector<SharedSlot>& snapshots);
  void Start(const StepPlan& plan);
  bool Share(const SharedSlot& shared);
  void SetPenaltyState(const StepPlan& plan);
  void Compute(const StepPlan& plan, Computed* computed);
  void Append(const PlannedSequence& sequence);
  void ComputeRows(const PlannedSequence& sequence, float* logits,
                   std::vector<SampleRecord>* scores);
  absl::StatusOr<SampledToken> Sample(const PlannedSequence& sequence, const float* row,
                                      Slot* slot);
  // True if a run is older than the current one and not collected yet.
  bool InFlight(int64_t run) const {
    return run < runs_ && run > runs_ - static_cast<int64_t>(computed_.size());
  }

  FakeOptions options_;
  PagedKeys keys_;
  std::vector<Slot> slots_;
  std::vector<Image> staging_;
  Sampler sampler_;
  std::vector<Appended> batch_;
  std::vector<uint64_t> token_hashes_;
  std::deque<uint64_t> page_ends_;  // states of KeyChains at page ends that are yet to be computed
  absl::Status pool_fault_;
  std::deque<Computed> computed_;  // submitted and not collected, the oldest first
  std::vector<float> delivered_;   // logits of the last plan collected
  std::vector<SampleRecord> delivered_scores_;
  std::vector<int32_t> delivered_pages_, delivered_sole_pages_;
  int64_t collected_free_pages_;
  std::set<uint64_t> released_in_flight_;  // requests
  int64_t occupied_slots_ = 0, snapshots_ = 0;
  int64_t runs_ = 0;
  int64_t last_tokens_ = 0;
  int64_t samples_ = 0;
  int64_t fed_samples_ = 0;
  int64_t processed_samples_ = 0;
  int64_t restored_states_ = 0;
  int64_t returns_ = 0;
  std::string violation_;
};

}  // namespace fox::sim
