// StepPlan: what one engine step will run, as plain printable data. Made by Scheduler, executed by
// a StepExecutor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/acp_stats.h"
#include "engine/request/request.h"
#include "kernels/interface/batch_view.h"
#include "kernels/interface/sampling_params.h"

namespace fox {

// A slot's penalty state, made anew.
struct SlotTokens {
  int32_t slot = 0;
  std::vector<PenaltyEntry> entries;
};

struct PlannedSequence {
  RequestId id = 0;
  int32_t slot = 0;
  int64_t position = 0;  // absolute position of the first token
  // To append, one or more. kLastSampledToken alone: the token last sampled for the slot, by a plan
  // that is not collected yet.
  std::vector<int32_t> token_ids;
  // Rows of logits wanted, counted within token_ids, ascending: the last one to sample from, more
  // for prompt log-probabilities.
  std::vector<int32_t> logit_rows;
  // How the executor samples from the last of logit_rows, instead of delivering logits; the row's
  // slot is the sequence's. If its logits processor is on, it counts the token in the slot's
  // penalty state.
  std::optional<SampleRow> sample;
  double log_tolerance = kNoMass;  // log eps; -infinity: prune nothing
  // Behind the same sequence at the position before: its one token is a draft (BatchView). What is
  // computed for it is surplus if the sequence gets another token there.
  bool draft = false;

  // Its sample needs a mask, which comes later (StepExecutor::SetMasks).
  bool masked() const { return sample && sample->logits_processor.mask >= 0; }
};

// A slot that becomes what another was at its last page end (Ops::Share).
struct SharedSlot {
  int32_t from = 0;
  int32_t to = 0;      // empty
  int64_t tokens = 0;  // that it has then
};

// A slot and its place in the executor's swap space.
struct SwappedSlot {
  int32_t slot = 0;
  int64_t offset = 0;                     // bytes
  int64_t pages = 0;                      // live ones; of a slot that is swapped out, at most
  int64_t tokens = 0;                     // that it has
  double max_log_evicted_mass = kNoMass;  // of a slot that is swapped in: its certificate
};

// What happens in a step, in the order of the fields.
struct StepPlan {
  std::vector<int32_t> drop_snapshots;     // slots of snapshots, emptied
  std::vector<SharedSlot> snapshots;       // taken, of sequences' slots
  std::vector<SwappedSlot> swap_outs;      // of sequences; each is released, too
  std::vector<int32_t> release_slots;      // of sequences, emptied
  std::vector<SharedSlot> starts;          // sequences that go on from a snapshot
  std::vector<SwappedSlot> swap_ins;       // sequences that go on from where they were
  std::vector<PlannedSequence> sequences;  // first those that bring one token
  // Set before anything is sampled; a slot's first sample with a logits processor comes with it.
  std::vector<SlotTokens> penalty_state;
  bool read_windows = false;  // StepResult::first_pages is wanted

  bool empty() const {
    return drop_snapshots.empty() && snapshots.empty() && release_slots.empty() &&
           sequences.empty();
  }
  int64_t num_tokens() const;
  std::string DebugString() const;
};

// What is known of each slot, before the plan's sequences run: it goes with the slot's pages.
void MoveSlots(const StepPlan& plan, int64_t lists_per_slot, std::vector<AcpStats>* slots);

}  // namespace fox
