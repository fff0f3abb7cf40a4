// Sequence: its invariants, chunks and their rows of logits, and counters across preemptions.
#include "engine/schedule/sequence.h"

#include <utility>

#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

Sequence::Sequence(Request submitted, const EngineOptions& options, int64_t max_model_len,
                   int64_t arrival_order, Seconds now)
    : request(std::move(submitted)),
      log_tolerance(options.acp == AcpMode::kOff
                        ? kNoMass
                        : request.log_tolerance.value_or(options.log_tolerance)),
      stop(request.stop, options.eos_token_ids),
      priority(options.priority_scheduling ? request.priority : 0),
      arrival(arrival_order),
      reader(request.flow_window) {
  tokens = std::move(request.prompt);
  prompt_tokens = static_cast<int64_t>(tokens.size());
  max_tokens = std::min<int64_t>(request.stop.max_tokens, max_model_len - prompt_tokens);
  if (request.sampling.repetition_penalty != 1.0f) counts.AddPrompt(tokens);
  if (request.grammar != nullptr) mask_steps = request.grammar->first_steps();
  if (request.prompt_rows != nullptr) prompt_rows_done = request.prompt_rows->first;
  stats.prompt_tokens = prompt_tokens;
  stats.arrival = now;
  stats.acp.log_tolerance = log_tolerance;
}

void Sequence::Check() const {
  const bool runs = state == SequenceState::kRunning, waits = state == SequenceState::kWaiting;
  // Slot and state.
  FOX_CHECK(slot >= 0 || (!runs && !has_penalty_state && computed == 0));
  FOX_CHECK(state != SequenceState::kNone || slot < 0);
  FOX_CHECK(!preempted || runs || (waits && slot < 0) || state == SequenceState::kNone);
  FOX_CHECK(!rescued || state != SequenceState::kPaused);
  FOX_CHECK(!runs || queue_.running_since != kNever);
  FOX_CHECK(!prefix_.claims || runs);
  FOX_CHECK(prefix_.snapshot < 0 || prefix_.found > 0);
  // Progress.
  FOX_CHECK(0 < prompt_tokens && prompt_tokens <= static_cast<int64_t>(tokens.size()));
  FOX_CHECK(0 <= computed && computed <= length());
  FOX_CHECK(produced() <= max_tokens);
  FOX_CHECK(0 <= prompt_rows_done && prompt_rows_done < prompt_tokens);
  FOX_CHECK(0 <= pending && pending <= in_flight);
  FOX_CHECK(0 <= drafts && drafts <= in_flight);
}

int64_t Sequence::FirstPromptRow() const { return std::max(computed, prompt_rows_done); }

int64_t Sequence::NumPromptRows(int64_t count) const {
  if (!wants_prompt_rows()) return 0;
  const int64_t end = std::min(computed + count, prompt_tokens - 1);
  return std::max<int64_t>(0, end - FirstPromptRow());
}

bool Sequence::ExecutorScores(const ExecutorLimits& limits) const {
  return limits.scores && request.prompt_rows == nullptr && fox::ExecutorScores(request.sampling);
}

int64_t Sequence::NumLogitRows(int64_t count, const ExecutorLimits& limits) const {
  const int64_t last = count == remaining() && samples() ? 1 : 0;
  const bool scores = ExecutorScores(limits);
  return last + (scores ? 0 : NumPromptRows(count));
}

PlannedSequence Sequence::Feed(int64_t count, const ExecutorLimits& limits) const {
  PlannedSequence planned;
  planned.id = request.id;
  planned.slot = slot;
  planned.position = computed;
  planned.token_ids = NextTokens(count);
  planned.log_tolerance = log_tolerance;
  const bool samples_last = count == remaining() && samples();
  const bool scores = ExecutorScores(limits);
  auto row = static_cast<int32_t>(FirstPromptRow() - computed);
  for (int64_t left = NumPromptRows(count); left > 0; --left, ++row) {
    if (scores) {
      const int32_t next = tokens[static_cast<size_t>(computed + row) + 1];
      planned.scores.push_back({row, {next, request.sampling.prompt_logprobs}});
    } else {
      planned.logit_rows.push_back(row);
    }
  }
  if (samples_last) planned.logit_rows.push_back(static_cast<int32_t>(count - 1));
  // Where the host scores rows of the prompt, it samples from the last row, too.
  if (limits.samples_on_device && samples_last && planned.logit_rows.size() == 1)
    planned.sample = SampleRowOf(request, stop, length(), produced());
  return planned;
}

// No draft ends a page, so no page is taken, summed up or evicted for a draft. A device with
// penalties gets no drafts, because it counts each token that it samples in its penalty state,
// right or wrong. A grammar gets none, because its mask comes too late.
std::vector<int32_t> Sequence::Drafts(const PlannedSequence& fed, const Speculation& how,
                                      int64_t max_drafts, int64_t window) const {
  const int64_t end = fed.position + 1, known = static_cast<int64_t>(tokens.size());
  const bool samples_last = fed.sample ? !NeedsCounts(request.sampling)
                                       : samples() && !fed.logit_rows.empty() && end == known;
  if (!samples_last || request.grammar != nullptr || !draft_record.MayDraft(end)) return {};
  int64_t count = std::min(max_drafts, draft_record.max_drafts());
  count = std::min(count, kPageTokens - 2 - fed.position % kPageTokens);
  count = std::min(count, max_tokens - (end + 1 - prompt_tokens));
  if (reader.window() > 0) {
    count = std::min(count, reader.window() + reader.acknowledged() - (end + 1 - prompt_tokens));
  }
  if (count <= 0) return {};
  return LookUpDrafts(tokens, how, end - known, count, window);
}

bool Sequence::TakeDraft(const PlannedSequence& draft) {
  const bool right = static_cast<int64_t>(tokens.size()) == draft.position + 1 &&
                     tokens.back() == draft.token_ids.front();
  if (right) {
    draft_record.OnAccepted();
    if (slot == draft.slot) ++computed;
    if (draft.sample) ++pending;
  }
  FOX_CHECK(drafts > 0);
  if (--drafts == 0) draft_record.Judge(draft.position);
  return right;
}

std::vector<int32_t> Progress::NextTokens(int64_t count) const {
  const int64_t known = std::min(count, static_cast<int64_t>(tokens.size()) - computed);
  if (known <= 0) return std::vector<int32_t>(static_cast<size_t>(count), kLastSampledToken);
  FOX_CHECK(known == count);
  const auto begin = tokens.begin() + computed;
  return std::vector<int32_t>(begin, begin + count);
}

void Sequence::Append(const SampledToken& token) {
  tokens.push_back(token.id);
  ++stats.completion_tokens;
  if (NeedsCounts(request.sampling)) counts.AddGenerated(token.id);
}

std::optional<Finish> Sequence::GrammarEnd() const {
  if (matcher == nullptr) return {};
  if (!matcher->status().ok()) return Finish::With(matcher->status());
  if (matcher->must_end()) return Finish::For(FinishReason::kStop);
  return {};
}

void Sequence::ReleaseSlot() {
  slot = -1;
  has_penalty_state = false;
  computed = 0;
  CloseSlotStats();
}

void Sequence::OnStepCollected(const AcpStats& collected) {
  FOX_CHECK(in_flight > 0);
  FOX_CHECK(0 <= collected.live_pages() && 0 <= collected.pages_evicted);
  --in_flight;
  slot_stats = collected;
  CloseSlotStats();
}

void Sequence::CloseSlotStats() {
  if (slot >= 0 || in_flight > 0) return;
  stats.acp += std::exchange(slot_stats, {});
}

void Sequence::AddLostMass(const PlannedSequence& planned, const LostMass& lost) {
  const int64_t end = planned.position + static_cast<int64_t>(planned.token_ids.size());
  if (end <= lost_mass_rows) return;
  lost_mass_rows = end;
  if (planned.position < prompt_tokens) stats.acp.prompt_lost.Add(lost);
  if (end > prompt_tokens) stats.acp.answer_lost.Add(lost);
}

RequestStats Sequence::FinalStats(Seconds now) const {
  RequestStats result = stats;
  result.acp += slot_stats;
  result.finished = now;
  return result;
}

}  // namespace fox
