// FakeExecutor: plan checks, rows, samples. Read fake_executor.h first.
#include "tests/engine/sim/fake_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/schedule/policy.h"
#include "kernels/cpu/score.h"

namespace fox::sim {

FakeExecutor::FakeExecutor(FakeOptions options)
    : options_(std::move(options)),
      keys_(options_),
      slots_(static_cast<size_t>(options_.limits.slots() + options_.limits.snapshot_slots)),
      staging_(static_cast<size_t>(options_.limits.staging_buffers),
               Image(static_cast<size_t>(options_.limits.staging_bytes))),
      sampler_(options_.limits.vocab_size),
      collected_free_pages_(options_.limits.num_pages) {}

void FakeExecutor::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = "run " + std::to_string(runs_) + ": " + what;
}

void FakeExecutor::Audit() {
  keys_.Audit();
  if (!keys_.violation().empty()) Violate(keys_.violation());
}

absl::Status FakeExecutor::Submit(const StepPlan& plan) {
  // Logits are valid until now: a later reader finds a numerical failure.
  std::fill(delivered_.begin(), delivered_.end(), std::nanf(""));
  for (SampleRecord& score : delivered_scores_) score.status = SampleStatus::kNotFinite;
  std::fill(delivered_pages_.begin(), delivered_pages_.end(), -1);
  std::fill(delivered_sole_pages_.begin(), delivered_sole_pages_.end(), 1 << 20);
  if (static_cast<int>(computed_.size()) >= options_.limits.depth) Violate("too deep");
  ++runs_;
  const bool fails = options_.fail_at_run >= 0 && runs_ > options_.fail_at_run;
  if (fails && !options_.fail_late) return absl::InternalError("injected fault");
  Computed& computed = computed_.emplace_back();
  if (fails) computed.status = absl::InternalError("injected fault");
  return Take(plan, &computed);
}

absl::Status FakeExecutor::Take(const StepPlan& plan, Computed* computed) {
  if (plan.empty()) Violate("an empty plan was run");
  Save(plan.saves, computed);
  DropSnapshots(plan.drop_snapshots);
  TakeSnapshots(plan.snapshots);
  Release(plan.release_slots);
  Load(plan.loads, computed);
  Start(plan);
  if (violation_.empty()) keys_.MoveStats(plan);
  for (const SharedSlot& taken : plan.snapshots) {
    computed->result.snapshots.push_back(keys_.stats(taken.to));
  }
  SetPenaltyState(plan);
  if (pool_fault_.ok()) pool_fault_ = CheckPlan(plan);
  if (!pool_fault_.ok()) {  // the fault stays, and later plans compute nothing
    computed->status = pool_fault_;
    return absl::OkStatus();
  }
  if (violation_.empty()) Compute(plan, computed);
  return violation_.empty() ? absl::OkStatus() : absl::InternalError("see violation()");
}

absl::StatusOr<StepResult> FakeExecutor::Collect() {
  if (computed_.empty()) {
    Violate("nothing to collect");
    return absl::InternalError("nothing to collect");
  }
  Computed computed = std::move(computed_.front());
  computed_.pop_front();
  if (!computed.status.ok()) return computed.status;
  // A device may write images as late as now, and read them until now.
  for (auto& [buffer, image] : computed.saved) staging_[static_cast<size_t>(buffer)] = image;
  for (auto& [buffer, image] : computed.loaded) {
    if (staging_[static_cast<size_t>(buffer)] != image) Violate("an image changed in flight");
  }
  delivered_ = std::move(computed.logits);             // keeps its place: the result points into it
  delivered_scores_ = std::move(computed.scores);      // likewise
  delivered_pages_ = std::move(computed.first_pages);  // likewise
  delivered_sole_pages_ = std::move(computed.sole_pages);
  collected_free_pages_ = computed.free_pages;
  return std::move(computed.result);
}

void FakeExecutor::Compute(const StepPlan& plan, Computed* computed) {
  // All pages are taken before any is evicted, as a backend does.
  batch_.clear();
  for (const PlannedSequence& sequence : plan.sequences) {
    batch_.push_back({sequence.slot, sequence.position,
                      static_cast<int64_t>(sequence.token_ids.size()), sequence.log_tolerance});
  }
  if (!batch_.empty()) keys_.Begin(batch_);
  size_t rows = 0, scores = 0;
  page_ends_.clear();
  for (const PlannedSequence& sequence : plan.sequences) {
    if (keys_.violation().empty()) Append(sequence);
    rows += sequence.logit_rows.size();
    scores += sequence.scores.size();
  }
  computed->scores.reserve(scores);  // the result points into it
  if (!keys_.violation().empty()) return Violate(keys_.violation());
  const size_t vocab = static_cast<size_t>(options_.limits.vocab_size);
  computed->logits.resize(rows * vocab);
  StepResult& result = computed->result;
  float* logits = computed->logits.data();
  for (const PlannedSequence& sequence : plan.sequences) {
    Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
    const SampleRecord* const scored = computed->scores.data() + computed->scores.size();
    ComputeRows(sequence, logits, &computed->scores);
    result.scores.push_back(sequence.scores.empty() ? nullptr : scored);
    const bool delivers = !sequence.logit_rows.empty() && !sequence.sample;
    result.logits.push_back(delivers ? logits : nullptr);
    logits += sequence.logit_rows.size() * vocab;
    if (!options_.limits.samples_on_device) continue;
    result.sampled.push_back(sequence.sample ? Sample(sequence, logits - vocab, &slot)
                                             : SampledToken());
  }
  if (!batch_.empty()) keys_.Evict();
  for (const Appended& rows_of : batch_) result.stats.push_back(keys_.stats(rows_of.slot));
  for (const PlannedSequence& sequence : plan.sequences) {
    LostMass& lost = result.lost_mass.emplace_back();
    lost.sum = static_cast<double>(sequence.token_ids.size());
    lost.max_log =
        static_cast<double>(sequence.position) + lost.sum - 1;  // the last row's position
  }
  if (plan.read_windows) {
    computed->first_pages = keys_.first_pages();
    result.first_pages = computed->first_pages.data();
  }
  computed->free_pages = free_pages();
  result.free_pages = free_pages() + options_.overstated_pages;
  if (options_.understated_pages > 0) {
    const uint64_t hidden = Mix(static_cast<uint64_t>(runs_), 11) %
                            static_cast<uint64_t>(options_.understated_pages + 1);
    result.free_pages = std::max<int64_t>(0, free_pages() - static_cast<int64_t>(hidden));
  }
  if (options_.limits.snapshot_slots > 0) {
    computed->sole_pages.assign(keys_.sole_pages(), keys_.sole_pages() + all_slots());
    result.sole_pages = computed->sole_pages.data();
  }
}

void FakeExecutor::Append(const PlannedSequence& sequence) {
  Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  if (!slot.occupied) {
    if (!released_in_flight_.empty()) {
      returns_ += static_cast<int64_t>(released_in_flight_.erase(sequence.id));
    }
    ++occupied_slots_;
    if (slot.length == 0) {
      const auto salt = options_.salts.find(sequence.id);
      slot.keys = {options_, sequence.id, salt == options_.salts.end() ? "" : salt->second,
                   sequence.log_tolerance};
      slot.page_end_keys = slot.keys;
    }
  }
  slot.occupied = true;
  slot.request = sequence.id;
  slot.used_at = runs_;
  token_hashes_.clear();
  const bool alone = sequence.token_ids.size() == 1;
  for (const int32_t id : sequence.token_ids) {
    const bool fed = id == kLastSampledToken;
    if (fed) ++fed_samples_;
    const int32_t token = fed ? slot.sampled : id;
    token_hashes_.push_back(slot.keys.Next(slot.length++, token, alone));
    if (slot.length % kPageTokens != 0) continue;
    slot.page_end_keys = slot.keys;
    page_ends_.push_back(slot.keys.state());
  }
  keys_.Write(sequence.slot, sequence.position, token_hashes_);
}

// Rows and page ends in the order of their positions: a row sees the pages kept by the page ends
// before it.
void FakeExecutor::ComputeRows(const PlannedSequence& sequence, float* logits,
                               std::vector<SampleRecord>* scores) {
  const int64_t end = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
  int64_t page_end = (sequence.position / kPageTokens + 1) * kPageTokens;
  const auto end_pages = [&](int64_t until) {
    for (; page_end <= until; page_end += kPageTokens) {
      keys_.EndPage(sequence.slot, page_ends_.front(), page_end, sequence.log_tolerance);
      page_ends_.pop_front();
    }
  };
  const bool is_nan =
      !options_.nan_requests.empty() && options_.nan_requests.count(sequence.id) > 0;
  const auto compute = [&](int32_t row, float* to) {
    const int64_t position = sequence.position + row;
    end_pages(position);
    FillLogits(keys_.Fold(sequence.slot, position), to, options_.limits.vocab_size);
    if (is_nan && position >= options_.nan_position) to[position % 3] = std::nanf("");
  };
  std::vector<float> scored(static_cast<size_t>(options_.limits.vocab_size));
  for (const PlannedScore& score : sequence.scores) {
    compute(score.row, scored.data());
    scores->push_back(ScoreOf(scored.data(), options_.limits.vocab_size, score.score));
  }
  for (const int32_t row : sequence.logit_rows) {
    compute(row, logits);
    logits += options_.limits.vocab_size;
  }
  end_pages(end);
}

absl::StatusOr<SampledToken> FakeExecutor::Sample(const PlannedSequence& sequence, const float* row,
                                                  Slot* slot) {
  absl::StatusOr<SampledToken> token = slot->sampler.Sample(*sequence.sample, row, sampler_);
  ++samples_;
  if (sequence.sample->logits_processor.on && sequence.token_ids.front() == kLastSampledToken)
    ++processed_samples_;
  slot->sampled_at = runs_;
  slot->sampled = token.ok() ? token->id : 0;
  return token;
}

absl::Status FakeExecutor::CheckPlan(const StepPlan& plan) {
  const ExecutorLimits& limits = options_.limits;
  last_tokens_ = plan.num_tokens();
  if (last_tokens_ > limits.max_num_batched_tokens) Violate("too many tokens");
  if (static_cast<int64_t>(plan.sequences.size()) > limits.max_num_seqs) Violate("too many slots");
  int64_t rows = 0;
  int64_t pages = 0;
  CheckMixture(plan);
  for (const PlannedSequence& sequence : plan.sequences) {
    rows += static_cast<int64_t>(sequence.logit_rows.size());
    if (sequence.slot < 0 || sequence.slot >= limits.slots()) {
      Violate("slot out of range");
      return absl::OkStatus();
    }
    Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
    if (std::exchange(slot.planned_at, runs_) == runs_) Violate("a slot appears twice");
    CheckSequence(sequence);
    CheckChunk(sequence, &slot);
    const int64_t end = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
    pages += limits.lists_per_slot * (PagesFor(end) - PagesFor(sequence.position));
  }
  if (rows > limits.max_logit_rows) Violate("too many rows");
  if (pages <= free_pages()) return absl::OkStatus();
  if (options_.reports_pool_faults) {
    return absl::UnavailableError(absl::StrCat("page pool: ", Describe(PoolFault::kOverdrawn)));
  }
  Violate("more pages than are free");
  return absl::OkStatus();
}

// Decodes come first, with few tokens of prompts beside each. Only a sequence that is fed the token
// sampled just before surely decodes: others may have come back, or wait for the host's sample.
void FakeExecutor::CheckMixture(const StepPlan& plan) {
  const ExecutorLimits& limits = options_.limits;
  bool decodes = false;
  int64_t prefill = 0, single = 0;
  for (const PlannedSequence& sequence : plan.sequences) {
    if (sequence.token_ids.size() > 1) {
      prefill += static_cast<int64_t>(sequence.token_ids.size());
      continue;
    }
    if (prefill > 0) Violate("a decode behind a chunk");
    if (!sequence.draft) ++single;
    decodes |= limits.depth == 2 && sequence.token_ids.front() == kLastSampledToken;
  }
  if (limits.prefill_tokens_per_decode == 0 || !decodes) return;
  const int64_t most = limits.prefill_tokens_per_decode * std::max(single, kLeastDecodes);
  // Where chunks do not matter, the first prompt may have a page beyond the limit.
  const int64_t page = kPageTokens, more = limits.chunks.fixed ? 0 : page;
  if (prefill > std::max({most, page, limits.chunks.min_room()}) + more) {
    Violate("too many tokens of prompts beside decodes");
  }
}

// The keys tell whether a token came alone.
void FakeExecutor::CheckChunk(const PlannedSequence& sequence, Slot* slot) {
  const auto [unit, fixed] = options_.limits.chunks;
  const auto count = static_cast<int64_t>(sequence.token_ids.size());
  if (!fixed) return;
  if (count > 1 && slot->decodes) Violate("a chunk behind decodes");
  if (count > 1 && sequence.position % unit != 0) Violate("a chunk begins anywhere");
  slot->decodes = count == 1 || (sequence.position + count) % unit != 0;
}

void FakeExecutor::CheckSequence(const PlannedSequence& sequence) {
  const ExecutorLimits& limits = options_.limits;
  const Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  if (slot.occupied && slot.request != sequence.id) Violate("the slot is taken");
  if (sequence.position != slot.length) Violate("position is not the slot's length");
  const int64_t count = static_cast<int64_t>(sequence.token_ids.size());
  if (count == 0) Violate("no tokens");
  if (sequence.position + count > limits.max_model_len) Violate("longer than the context");
  if (!options_.max_lengths.empty()) {
    const auto most = options_.max_lengths.find(sequence.id);
    if (most != options_.max_lengths.end() && sequence.position + count > most->second) {
      Violate("fed beyond max_tokens");
    }
  }
  for (size_t i = 0; i < sequence.logit_rows.size(); ++i) {
    if (sequence.logit_rows[i] < 0 || sequence.logit_rows[i] >= count) Violate("row range");
    if (i > 0 && sequence.logit_rows[i] <= sequence.logit_rows[i - 1]) Violate("row order");
  }
  if (!sequence.scores.empty() && !limits.scores) Violate("scores are not understood");
  for (size_t i = 0; i < sequence.scores.size(); ++i) {
    const auto& [row, how] = sequence.scores[i];
    if (row < 0 || row >= count || how.target < 0 || how.target >= limits.vocab_size ||
        how.logprobs < 0 || how.logprobs > kMaxSampledLogprobs) {
      Violate("scored row range");
    }
    if (i > 0 && row <= sequence.scores[i - 1].row) Violate("scored row order");
  }
  if (!sequence.scores.empty() && !sequence.logit_rows.empty() &&
      sequence.logit_rows.front() <= sequence.scores.back().row) {
    Violate("a scored row behind a row of logits");
  }
  for (const int32_t token : sequence.token_ids) {
    if (token >= 0 && token < limits.vocab_size) continue;
    if (token != kLastSampledToken || count != 1 || limits.depth == 1) Violate("token range");
    if (!slot.occupied || !InFlight(slot.sampled_at)) Violate("fed blindly what no plan samples");
  }
  CheckSample(sequence, slot);
}

void FakeExecutor::CheckSample(const PlannedSequence& sequence, const Slot& slot) {
  if (!sequence.sample) {
    if (slot.has_states && !sequence.logit_rows.empty()) Violate("an uncounted token");
    return;
  }
  const int64_t count = static_cast<int64_t>(sequence.token_ids.size());
  if (sequence.sample->logits_processor.on && !slot.has_states)
    Violate("processed by stale states");
  if (!options_.limits.samples_on_device) Violate("asked to sample");
  if (sequence.logit_rows.size() != 1 || sequence.logit_rows[0] != count - 1) {
    Violate("rows of a sample");
  }
  if (sequence.sample->position != static_cast<uint64_t>(sequence.position + count)) {
    Violate("position of a sample");
  }
}

void FakeExecutor::SetPenaltyState(const StepPlan& plan) {
  for (const SlotTokens& states : plan.penalty_state) {
    if (states.slot < 0 || states.slot >= options_.limits.slots()) {
      return Violate("states of a slot out of range");
    }
    const auto user = std::find_if(plan.sequences.begin(), plan.sequences.end(),
                                   [&](const auto& s) { return s.slot == states.slot; });
    if (user == plan.sequences.end() || !user->sample || !user->sample->logits_processor.on) {
      return Violate("token states that no sample needs");
    }
    Slot& slot = slots_[static_cast<size_t>(states.slot)];
    if (std::exchange(slot.has_states, true)) Violate("token states twice");
    if (std::any_of(states.entries.begin(), states.entries.end(),
                    [](const PenaltyEntry& e) { return (e.state.bits & kTokenGenerated) != 0; })) {
      ++restored_states_;
    }
    slot.sampler.SetPenaltyState(states.entries);
  }
}

bool FakeExecutor::IsTransfer(const SlotTransfer& transfer) {
  const bool right = transfer.slot >= options_.limits.slots() && transfer.slot < all_slots() &&
                     transfer.buffer >= 0 && transfer.buffer < options_.limits.staging_buffers &&
                     options_.limits.ImageBytes(transfer.pages) <= options_.limits.staging_bytes;
  if (!right) Violate("a transfer out of range");
  return right;
}

void FakeExecutor::Save(const std::vector<SlotTransfer>& saves, Computed* computed) {
  for (const SlotTransfer& save : saves) {
    if (!IsTransfer(save)) return;
    const Slot& slot = slots_[static_cast<size_t>(save.slot)];
    if (!slot.occupied) return Violate("saved what is no snapshot");
    Image image(static_cast<size_t>(options_.limits.staging_bytes));
    keys_.Save(save, image.data());
    if (!keys_.violation().empty()) return Violate(keys_.violation());
    const int64_t end = options_.limits.ImageBytes(save.pages);
    std::memcpy(image.data() + end - sizeof(KeyChain), &slot.keys, sizeof(KeyChain));
    computed->saved.emplace_back(save.buffer, std::move(image));
  }
}

void FakeExecutor::Load(const std::vector<SlotTransfer>& loads, Computed* computed) {
  for (const SlotTransfer& load : loads) {
    if (!IsTransfer(load)) return;
    Slot& slot = slots_[static_cast<size_t>(load.slot)];
    if (slot.occupied || slot.length > 0) return Violate("loaded into a slot that is taken");
    if (load.pages > free_pages()) return Violate("loads more pages than are free");
    Image& image = staging_[static_cast<size_t>(load.buffer)];
    keys_.Load(load, image.data());
    if (!keys_.violation().empty()) return Violate(keys_.violation());
    const int64_t end = options_.limits.ImageBytes(load.pages);
    std::memcpy(&slot.keys, image.data() + end - sizeof(KeyChain), sizeof(KeyChain));
    slot.page_end_keys = slot.keys;
    slot.length = load.tokens;
    slot.occupied = true;
    ++snapshots_;
    computed->loaded.emplace_back(load.buffer, image);
  }
}

void FakeExecutor::DropSnapshots(const std::vector<int32_t>& slots) {
  for (const int32_t index : slots) {
    if (index < options_.limits.slots() || index >= all_slots())
      return Violate("no snapshot's slot");
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (!std::exchange(slot.occupied, false)) return Violate("dropped what is no snapshot");
    slot.length = 0;
    --snapshots_;
  }
  keys_.Release(slots);
}

void FakeExecutor::TakeSnapshots(const std::vector<SharedSlot>& snapshots) {
  for (const SharedSlot& snapshot : snapshots) {
    if (snapshot.from >= options_.limits.slots() || snapshot.to < options_.limits.slots()) {
      return Violate("a snapshot between wrong slots");
    }
    if (!Share(snapshot)) return;
    slots_[static_cast<size_t>(snapshot.to)].occupied = true;
    ++snapshots_;
  }
}

// CheckSequence refuses positions that do not fit.
void FakeExecutor::Start(const StepPlan& plan) {
  for (const SharedSlot& start : plan.starts) {
    if (start.from < options_.limits.slots() || start.to >= options_.limits.slots()) {
      return Violate("a start between wrong slots");
    }
    if (std::none_of(plan.sequences.begin(), plan.sequences.end(),
                     [&](const PlannedSequence& s) { return s.slot == start.to; })) {
      return Violate("a start that does not run");
    }
    if (!Share(start)) return;
  }
}

bool FakeExecutor::Share(const SharedSlot& shared) {
  const bool exist = std::min(shared.from, shared.to) >= 0 &&
                     std::max(shared.from, shared.to) < all_slots() && shared.from != shared.to;
  if (!exist) {
    Violate("shared slots out of range");
    return false;
  }
  const Slot& from = slots_[static_cast<size_t>(shared.from)];
  Slot& to = slots_[static_cast<size_t>(shared.to)];
  if (!from.occupied || shared.tokens != from.length / kPageTokens * kPageTokens) {
    Violate("shared what is not there");
  }
  if (to.occupied || to.length > 0) Violate("shared into a slot that is taken");
  if (shared.tokens % options_.limits.chunks.unit != 0) Violate("a snapshot within a chunk");
  if (!violation_.empty()) return false;
  to.length = shared.tokens;
  to.keys = to.page_end_keys = from.page_end_keys;
  keys_.Share(shared);
  return true;
}

void FakeExecutor::Release(const std::vector<int32_t>& slots) {
  for (const int32_t index : slots) {
    if (index < 0 || index >= options_.limits.slots()) return Violate("released slot out of range");
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (!slot.occupied) return Violate("released an empty slot");
    if (InFlight(slot.used_at)) released_in_flight_.insert(slot.request);
    --occupied_slots_;
    slot.occupied = false;
    slot.length = 0;
    slot.has_states = false;
    slot.decodes = false;
    slot.planned_at = slot.sampled_at = -1;
  }
  keys_.Release(slots);
}

}  // namespace fox::sim
