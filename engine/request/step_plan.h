// StepPlan: the work of one engine step, as plain printable data. Scheduler makes it, a
// StepExecutor executes it.
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

// The new penalty state of a slot.
struct SlotTokens {
  int32_t slot = 0;
  std::vector<PenaltyEntry> entries;
};

// A row of a prompt and the token after it.
struct PlannedScore {
  int32_t row = 0;  // index into token_ids
  ScoreRow score;
};

struct PlannedSequence {
  RequestId id = 0;
  int32_t slot = 0;
  int64_t position = 0;  // absolute position of the first token
  // One or more tokens to append. kLastSampledToken alone: the token last sampled for the slot by a
  // plan that is not collected yet.
  std::vector<int32_t> token_ids;
  // Indices into token_ids, ascending: rows of logits to deliver. The last row is sampled from, the
  // others are for prompt log-probabilities.
  std::vector<int32_t> logit_rows;
  // Rows whose next token the executor scores instead of delivering logits, in addition to
  // logit_rows; ascending. Only for executors with ExecutorLimits::scores.
  std::vector<PlannedScore> scores;
  // How the executor samples from the last of logit_rows instead of delivering logits. The row's
  // slot is the sequence's. If the logits processor is on, the token counts in the slot's penalty
  // state.
  std::optional<SampleRow> sample;
  double log_tolerance = kNoMass;  // log eps; -infinity: prune nothing
  // The single token is a draft (BatchView). The entry follows the same sequence's entry for the
  // position before. If the sequence gets another token at this position, the work was surplus.
  bool draft = false;

  // True if the sample needs a mask, which comes later (StepExecutor::SetMasks).
  bool masked() const { return sample && sample->logits_processor.mask >= 0; }
};

// Slot `to` becomes a copy of slot `from` as of its last page end (Ops::Share).
struct SharedSlot {
  int32_t from = 0;
  int32_t to = 0;      // empty before
  int64_t tokens = 0;  // in `to` afterwards
};

// A snapshot slot and the staging buffer that has its image (kernels/paging/slot_image.h).
struct SlotTransfer {
  int32_t slot = 0;
  int32_t buffer = 0;
  int64_t pages = 0;                      // of the image
  int64_t tokens = 0;                     // in the slot
  double max_log_evicted_mass = kNoMass;  // the slot's certificate
};

// The executor carries out the fields in this order.
struct StepPlan {
  std::vector<SlotTransfer> saves;         // snapshots to copy into staging buffers
  std::vector<int32_t> drop_snapshots;     // snapshot slots to empty
  std::vector<SharedSlot> snapshots;       // snapshots to take of sequences' slots
  std::vector<int32_t> release_slots;      // sequences' slots to empty
  std::vector<SlotTransfer> loads;         // images to make snapshots of, in empty slots
  std::vector<SharedSlot> starts;          // slots to start from a snapshot
  std::vector<PlannedSequence> sequences;  // entries with one token first
  // Set before anything is sampled. A slot's first sample with a logits processor comes with its
  // penalty state.
  std::vector<SlotTokens> penalty_state;
  bool read_windows = false;  // StepResult::first_pages is to be filled in

  bool empty() const {
    return saves.empty() && drop_snapshots.empty() && snapshots.empty() && release_slots.empty() &&
           loads.empty() && sequences.empty();
  }
  int64_t num_tokens() const;
  std::string DebugString() const;
};

// Updates the counters of all slots for the plan's drops, snapshots, releases, loads and starts,
// before its sequences run: counters go where the pages go.
void MoveSlots(const StepPlan& plan, int64_t lists_per_slot, std::vector<AcpStats>* slots);

}  // namespace fox
