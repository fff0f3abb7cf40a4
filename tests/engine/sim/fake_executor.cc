// FakeExecutor: pages, lists, folds and their audit. Read fake_executor.h first.
#include "tests/engine/sim/fake_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox::sim {
namespace {

constexpr uint64_t kPoison = 0xdeadbeefdeadbeefULL;

}  // namespace

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x632BE59BD9B4E019ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t KeyHash(uint64_t request, int64_t head, int64_t position, int32_t token) {
  return Mix(Mix(request, static_cast<uint64_t>(head)),
             Mix(static_cast<uint64_t>(position), static_cast<uint64_t>(token)));
}

uint64_t Fold(uint64_t state, uint64_t key) { return (state ^ key) * 0x100000001B3ULL; }

int WindowPages(const FakeOptions& options, uint64_t request, int64_t head, int64_t end) {
  if (options.max_window < 0) return std::numeric_limits<int>::max();
  const uint64_t span = static_cast<uint64_t>(options.max_window - options.min_window + 1);
  const uint64_t random =
      Mix(Mix(request, static_cast<uint64_t>(head)), static_cast<uint64_t>(end));
  return options.min_window + static_cast<int>(random % span);
}

void FillLogits(uint64_t fold, float* row, int32_t vocab) {
  const int32_t best = static_cast<int32_t>(Mix(fold, 7) % static_cast<uint64_t>(vocab));
  for (int32_t i = 0; i < vocab; ++i) {
    const uint64_t noise = (fold >> (i % 48)) * 0x9E3779B97F4A7C15ULL;
    row[i] = static_cast<float>(noise >> 40) * 0x1.0p-23f;  // [0, 2)
  }
  row[best] = 3.0f;
}

FakeExecutor::FakeExecutor(FakeOptions options)
    : options_(std::move(options)),
      sampler_(options_.limits.vocab_size),
      collected_free_pages_(options_.limits.num_pages) {
  const size_t pages = static_cast<size_t>(options_.limits.num_pages);
  pool_.resize(pages);
  for (Page& page : pool_) page.fill(kPoison);
  owner_.assign(pages, -1);
  for (size_t page = pages; page > 0; --page) free_stack_.push_back(static_cast<int32_t>(page - 1));
  slots_.resize(static_cast<size_t>(options_.limits.slots()));
  for (Slot& slot : slots_) slot.lists.resize(static_cast<size_t>(options_.limits.lists_per_slot));
}

void FakeExecutor::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = "run " + std::to_string(runs_) + ": " + what;
}

int64_t FakeExecutor::occupied_slots() const {
  return std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.occupied; });
}

absl::Status FakeExecutor::Submit(const StepPlan& plan) {
  // Logits are valid until now: whoever still reads them finds a numerical failure.
  std::fill(delivered_.begin(), delivered_.end(), std::nanf(""));
  std::fill(delivered_pages_.begin(), delivered_pages_.end(), -1);
  if (static_cast<int>(computed_.size()) >= options_.limits.depth) Violate("too deep");
  ++runs_;
  const bool fails = options_.fail_at_run >= 0 && runs_ > options_.fail_at_run;
  if (fails && !options_.fail_late) return absl::InternalError("injected fault");
  Computed& computed = computed_.emplace_back();
  if (fails) computed.status = absl::InternalError("injected fault");
  if (plan.empty()) Violate("an empty plan was run");
  for (const int32_t slot : plan.release_slots) {
    if (slot < 0 || slot >= options_.limits.slots()) {
      Violate("released slot out of range");
      continue;
    }
    Release(&slots_[static_cast<size_t>(slot)]);
  }
  SetPenaltyState(plan);
  if (pool_fault_.ok()) pool_fault_ = CheckPlan(plan);
  if (!pool_fault_.ok()) {  // stays; what this and later plans would compute is worth nothing
    computed.status = pool_fault_;
    return absl::OkStatus();
  }
  if (!violation_.empty()) return absl::InternalError("the plan is wrong");
  Compute(plan, &computed);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> FakeExecutor::Collect() {
  if (computed_.empty()) {
    Violate("nothing to collect");
    return absl::InternalError("nothing to collect");
  }
  Computed computed = std::move(computed_.front());
  computed_.pop_front();
  if (!computed.status.ok()) return computed.status;
  delivered_ = std::move(computed.logits);             // keeps its place: the result points into it
  delivered_pages_ = std::move(computed.first_pages);  // likewise
  collected_free_pages_ = computed.free_pages;
  return std::move(computed.result);
}

void FakeExecutor::Compute(const StepPlan& plan, Computed* computed) {
  // All pages are taken before any is evicted, as a backend may do.
  for (const PlannedSequence& sequence : plan.sequences) {
    AppendTokens(sequence, &slots_[static_cast<size_t>(sequence.slot)]);
  }
  const size_t vocab = static_cast<size_t>(options_.limits.vocab_size);
  size_t rows = 0;
  for (const PlannedSequence& sequence : plan.sequences) rows += sequence.logit_rows.size();
  computed->logits.resize(rows * vocab);
  StepResult& result = computed->result;
  float* logits = computed->logits.data();
  for (const PlannedSequence& sequence : plan.sequences) {
    Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
    ComputeRows(sequence, logits);
    const bool delivers = !sequence.logit_rows.empty() && !sequence.sample;
    result.logits.push_back(delivers ? logits : nullptr);
    result.sampled.push_back(sequence.sample ? Sample(sequence, logits, &slot) : SampledToken());
    logits += sequence.logit_rows.size() * vocab;
    result.stats.push_back(slot.stats);
  }
  if (plan.read_windows) {
    for (const Slot& slot : slots_) {
      for (const List& list : slot.lists) {
        computed->first_pages.push_back(static_cast<int32_t>(list.first_live));
      }
    }
    result.first_pages = computed->first_pages.data();
  }
  computed->free_pages = free_pages();
  result.free_pages = free_pages();
  if (options_.understated_pages > 0) {
    const uint64_t hidden = Mix(static_cast<uint64_t>(runs_), 11) %
                            static_cast<uint64_t>(options_.understated_pages + 1);
    result.free_pages = std::max<int64_t>(0, free_pages() - static_cast<int64_t>(hidden));
  }
  SpoilResult(&result);
}

void FakeExecutor::ComputeRows(const PlannedSequence& sequence, float* logits) {
  Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  size_t next_row = 0;
  for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
    const int64_t position = sequence.position + static_cast<int64_t>(i);
    if (next_row < sequence.logit_rows.size() &&
        sequence.logit_rows[next_row] == static_cast<int32_t>(i)) {
      FillLogits(FoldSlot(slot, position), logits, options_.limits.vocab_size);
      if (options_.nan_requests.count(sequence.id) > 0 && position >= options_.nan_position) {
        logits[position % 3] = std::nanf("");
      }
      ++next_row;
      logits += options_.limits.vocab_size;
    }
    if ((position + 1) % kPageTokens == 0) Evict(position + 1, &slot);
  }
}

absl::StatusOr<SampledToken> FakeExecutor::Sample(const PlannedSequence& sequence, const float* row,
                                                  Slot* slot) {
  const SlotSampler before = slot->sampler;
  absl::StatusOr<SampledToken> token = slot->sampler.Sample(*sequence.sample, row, sampler_);
  if (options_.bug == ExecutorBug::kForgetCount && Strike()) slot->sampler = before;
  ++samples_;
  if (sequence.sample->logits_processor.on && sequence.token_ids.front() == kLastSampledToken)
    ++processed_samples_;
  slot->sampled_at = runs_;
  if (options_.bug == ExecutorBug::kStaleSample && Strike()) return token;
  slot->sampled = token.ok() ? token->id : 0;
  return token;
}

// Planted bugs of what is delivered.
void FakeExecutor::SpoilResult(StepResult* result) {
  if (options_.bug == ExecutorBug::kOverstateLive) {
    for (AcpStats& stats : result->stats) stats.pages_allocated += options_.limits.lists_per_slot;
  }
  if (options_.bug == ExecutorBug::kOverstateFree) {
    result->free_pages += options_.limits.lists_per_slot;
  }
  if (options_.bug == ExecutorBug::kWrongLogitRows && result->logits.size() > 1 && Strike() &&
      result->logits[0] != nullptr && result->logits[1] != nullptr) {
    std::swap(result->logits[0], result->logits[1]);
  }
  if (options_.bug == ExecutorBug::kSwapSamples && result->sampled.size() > 1 && Strike()) {
    std::swap(result->sampled[0], result->sampled[1]);
  }
}

absl::Status FakeExecutor::CheckPlan(const StepPlan& plan) {
  const ExecutorLimits& limits = options_.limits;
  if (plan.num_tokens() > limits.max_num_batched_tokens) Violate("too many tokens");
  int64_t rows = 0;
  int64_t pages = 0;
  std::set<int32_t> seen;
  for (const PlannedSequence& sequence : plan.sequences) {
    rows += static_cast<int64_t>(sequence.logit_rows.size());
    if (sequence.slot < 0 || sequence.slot >= limits.slots()) {
      Violate("slot out of range");
      return absl::OkStatus();
    }
    if (!seen.insert(sequence.slot).second) Violate("a slot appears twice");
    CheckSequence(sequence);
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

void FakeExecutor::CheckSequence(const PlannedSequence& sequence) {
  const ExecutorLimits& limits = options_.limits;
  const Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  if (slot.occupied && slot.request != sequence.id) Violate("the slot is taken");
  if (sequence.position != slot.length) Violate("position is not the slot's length");
  const int64_t count = static_cast<int64_t>(sequence.token_ids.size());
  if (count == 0) Violate("no tokens");
  if (sequence.position + count > limits.max_model_len) Violate("longer than the context");
  const auto most = options_.max_lengths.find(sequence.id);
  if (most != options_.max_lengths.end() && sequence.position + count > most->second) {
    Violate("fed beyond max_tokens");
  }
  for (size_t i = 0; i < sequence.logit_rows.size(); ++i) {
    if (sequence.logit_rows[i] < 0 || sequence.logit_rows[i] >= count) Violate("row range");
    if (i > 0 && sequence.logit_rows[i] <= sequence.logit_rows[i - 1]) Violate("row order");
  }
  for (const int32_t token : sequence.token_ids) {
    if (token >= 0 && token < limits.vocab_size) continue;
    if (token != kLastSampledToken || count != 1 || limits.depth == 1) Violate("token range");
    if (!slot.occupied || !InFlight(slot.sampled_at)) Violate("fed blindly what no plan samples");
  }
  if (!sequence.sample) {
    if (slot.has_states && !sequence.logit_rows.empty()) Violate("a token that nobody counts");
    return;
  }
  if (sequence.sample->logits_processor.on && !slot.has_states)
    Violate("processed by stale states");
  if (!limits.samples_on_device) Violate("asked to sample");
  if (sequence.logit_rows != std::vector<int32_t>{static_cast<int32_t>(count - 1)}) {
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
    if (options_.bug == ExecutorBug::kStaleStates && Strike()) continue;
    slot.sampler.SetPenaltyState(states.entries);
  }
}

void FakeExecutor::Release(Slot* slot) {
  if (!slot->occupied) return Violate("released an empty slot");
  if (options_.bug == ExecutorBug::kStaleSlot && Strike()) return;
  for (List& list : slot->lists) {
    const bool leak = options_.bug == ExecutorBug::kLeakOnRelease && Strike();
    const int64_t end = static_cast<int64_t>(list.pages.size()) - (leak ? 1 : 0);
    for (int64_t page = list.first_live; page < end; ++page) Free(&list, page);
    list = List();
  }
  if (InFlight(slot->used_at)) released_in_flight_.insert(slot->request);
  slot->occupied = false;
  slot->length = 0;
  slot->has_states = false;
  slot->stats = {};
  slot->sampled_at = -1;
}

void FakeExecutor::AppendTokens(const PlannedSequence& sequence, Slot* slot) {
  if (!slot->occupied) returns_ += static_cast<int64_t>(released_in_flight_.erase(sequence.id));
  slot->occupied = true;
  slot->request = sequence.id;
  slot->used_at = runs_;
  const int64_t slot_index = slot - slots_.data();
  for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
    const int64_t position = slot->length++;
    const bool fed = sequence.token_ids[i] == kLastSampledToken;
    const int32_t token = fed ? slot->sampled : sequence.token_ids[i];
    if (fed) ++fed_samples_;
    for (size_t head = 0; head < slot->lists.size(); ++head) {
      List& list = slot->lists[head];
      if (position % kPageTokens == 0) {
        const int32_t page = Allocate(slot);
        if (page < 0) return Violate("the pool is empty");
        owner_[static_cast<size_t>(page)] =
            static_cast<int32_t>(slot_index * options_.limits.lists_per_slot) +
            static_cast<int32_t>(head);
        list.pages.push_back(page);
        if (options_.bug == ExecutorBug::kSkipFirstOfPage) continue;
      }
      pool_[static_cast<size_t>(list.pages.back())][static_cast<size_t>(position % kPageTokens)] =
          KeyHash(sequence.id, static_cast<int64_t>(head), position, token);
    }
  }
  if (options_.bug == ExecutorBug::kSwapHeads && slot->lists.size() > 1 && Strike()) {
    std::swap(slot->lists[0].pages, slot->lists[1].pages);
  }
  if (options_.bug == ExecutorBug::kForeignPage && Strike()) {
    Slot& other = slots_[(static_cast<size_t>(slot_index) + 1) % slots_.size()];
    if (other.occupied && &other != slot) slot->lists[0].pages.back() = other.lists[0].pages.back();
  }
}

int32_t FakeExecutor::Allocate(Slot* slot) {
  if (free_stack_.empty()) return -1;
  const int32_t page = free_stack_.back();
  free_stack_.pop_back();
  ++slot->stats.pages_allocated;
  slot->stats.peak_pages = std::max(slot->stats.peak_pages, slot->stats.live_pages());
  return page;
}

void FakeExecutor::Free(List* list, int64_t page_index) {
  int32_t& page = list->pages[static_cast<size_t>(page_index)];
  pool_[static_cast<size_t>(page)].fill(kPoison);
  owner_[static_cast<size_t>(page)] = -1;
  free_stack_.push_back(page);
  page = -1;
}

void FakeExecutor::Evict(int64_t end, Slot* slot) {
  const int64_t pages = end / kPageTokens;
  for (size_t head = 0; head < slot->lists.size(); ++head) {
    List& list = slot->lists[head];
    int64_t keep = WindowPages(options_, slot->request, static_cast<int64_t>(head), end);
    if (options_.bug == ExecutorBug::kForgetToEvict && Strike()) continue;
    if (options_.bug == ExecutorBug::kEvictEarly && keep > 0 && keep < pages && Strike()) --keep;
    const int64_t boundary = std::min(pages - keep, static_cast<int64_t>(list.pages.size()));
    for (; list.first_live < boundary; ++list.first_live) {
      if (options_.bug == ExecutorBug::kDoubleFree && Strike()) {
        free_stack_.push_back(list.pages[static_cast<size_t>(list.first_live)]);
      }
      Free(&list, list.first_live);
      ++slot->stats.pages_evicted;
      ++evictions_;
      slot->stats.max_log_evicted_mass = std::max(slot->stats.max_log_evicted_mass, -12.0);
    }
  }
}

uint64_t FakeExecutor::FoldSlot(const Slot& slot, int64_t position) const {
  uint64_t state = 0;
  for (const List& list : slot.lists) {
    for (int64_t p = list.first_live * kPageTokens; p <= position; ++p) {
      const int32_t page = list.pages[static_cast<size_t>(p / kPageTokens)];
      state = Fold(
          state, page < 0 ? kPoison
                          : pool_[static_cast<size_t>(page)][static_cast<size_t>(p % kPageTokens)]);
    }
  }
  return state;
}

void FakeExecutor::Audit() {
  std::vector<int> uses(pool_.size(), 0);
  for (const int32_t page : free_stack_) {
    ++uses[static_cast<size_t>(page)];
    if (owner_[static_cast<size_t>(page)] != -1) Violate("a free page has an owner");
    if (pool_[static_cast<size_t>(page)].front() != kPoison) Violate("a free page was written");
  }
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    for (size_t head = 0; head < slot.lists.size(); ++head) {
      const List& list = slot.lists[head];
      if (static_cast<int>(list.pages.size()) != PagesFor(slot.length)) Violate("list length");
      for (size_t i = 0; i < list.pages.size(); ++i) {
        const int32_t page = list.pages[i];
        const bool live = static_cast<int64_t>(i) >= list.first_live;
        if (live != (page >= 0)) Violate("live pages are not one range");
        if (page < 0) continue;
        ++uses[static_cast<size_t>(page)];
        if (owner_[static_cast<size_t>(page)] !=
            static_cast<int32_t>(s * slot.lists.size() + head)) {
          Violate("a page has another owner");
        }
      }
    }
  }
  for (const int count : uses) {
    if (count == 0) Violate("a page is lost");
    if (count > 1) Violate("a page is used twice");
  }
}

}  // namespace fox::sim
