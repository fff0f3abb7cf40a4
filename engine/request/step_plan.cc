// StepPlan as text, one line a plan, for logs and failures of tests; and MoveSlots.
#include "engine/request/step_plan.h"

#include "absl/strings/str_cat.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

int64_t StepPlan::num_tokens() const {
  int64_t tokens = 0;
  for (const PlannedSequence& sequence : sequences) {
    tokens += static_cast<int64_t>(sequence.token_ids.size());
  }
  return tokens;
}

std::string StepPlan::DebugString() const {
  std::string text;
  for (const SlotTransfer& save : saves) {
    absl::StrAppend(&text, "save ", save.slot, " to ", save.buffer, "; ");
  }
  for (const int32_t slot : drop_snapshots) absl::StrAppend(&text, "drop ", slot, "; ");
  for (const SharedSlot& taken : snapshots) {
    absl::StrAppend(&text, "snapshot ", taken.to, " of ", taken.from, " at ", taken.tokens, "; ");
  }
  absl::StrAppend(&text, "release [");
  for (size_t i = 0; i < release_slots.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", release_slots[i]);
  }
  absl::StrAppend(&text, "]");
  for (const SlotTransfer& load : loads) {
    absl::StrAppend(&text, "; load ", load.slot, " from ", load.buffer, " at ", load.tokens);
  }
  for (const SharedSlot& start : starts) {
    absl::StrAppend(&text, "; slot ", start.to, " from ", start.from, " at ", start.tokens);
  }
  for (const PlannedSequence& sequence : sequences) {
    absl::StrAppend(&text, "; id ", sequence.id, " slot ", sequence.slot, " tokens ",
                    sequence.position, "+", sequence.token_ids.size(), " rows ",
                    sequence.logit_rows.size(), sequence.scores.empty() ? "" : " scores",
                    sequence.sample ? " sample" : "", sequence.draft ? " draft" : "");
    if (sequence.sample && sequence.sample->logits_processor.on)
      absl::StrAppend(&text, " processed", sequence.masked() ? " masked" : "");
    if (sequence.token_ids.size() == 1 && sequence.token_ids[0] == kLastSampledToken) {
      absl::StrAppend(&text, " fed");
    }
  }
  for (const SlotTokens& states : penalty_state) {
    absl::StrAppend(&text, "; states of slot ", states.slot, ": ", states.entries.size());
  }
  return text;
}

// Blocks count for the slot that visited them, so a shared slot starts without any.
void MoveSlots(const StepPlan& plan, int64_t lists_per_slot, std::vector<AcpStats>* slots) {
  const auto at = [slots](int32_t slot) -> AcpStats& {
    return (*slots)[static_cast<size_t>(slot)];
  };
  const auto share = [&](const SharedSlot& shared) {
    AcpStats& stats = at(shared.to) = at(shared.from);
    stats.blocks_total = stats.blocks_pruned = 0;
    stats.pages_allocated = lists_per_slot * PagesFor(shared.tokens);
    stats.pages_found_evicted = stats.pages_evicted;
    stats.peak_pages = stats.live_pages();
  };
  for (const int32_t slot : plan.drop_snapshots) at(slot) = {};
  for (const SharedSlot& snapshot : plan.snapshots) share(snapshot);
  for (const int32_t slot : plan.release_slots) at(slot) = {};
  for (const SlotTransfer& load : plan.loads) {
    AcpStats& stats = at(load.slot) = {};
    stats.pages_allocated = lists_per_slot * PagesFor(load.tokens);
    stats.pages_evicted = stats.pages_found_evicted = stats.pages_allocated - load.pages;
    stats.peak_pages = load.pages;
    stats.max_log_evicted_mass = load.max_log_evicted_mass;
  }
  for (const SharedSlot& start : plan.starts) share(start);
}

}  // namespace fox
