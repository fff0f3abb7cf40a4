// SequenceEvents: engine outputs into messages of fox.v1. See sequence_events.h.
#include "server/calls/sequence_events.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/paging/paged_kv.h"

namespace fox {
namespace {

void AddLogprobs(const SampledToken& token, v1::TokenLogprobs* out) {
  const auto add = [](const auto& from, v1::TokenLogprob* to) {
    to->set_token_id(static_cast<uint32_t>(from.id));
    to->set_logprob(from.logprob);
    to->set_rank(static_cast<uint32_t>(from.rank));
  };
  add(token, out->mutable_token());
  for (const TokenLogprob& alternative : token.top) add(alternative, out->add_top());
}

uint64_t Unsigned(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(0, value)); }

v1::LostMass ToWire(const LostMass& lost) {
  v1::LostMass out;
  out.set_max_log(RoundedUp(lost.max_log));
  out.set_log_sum(RoundedUp(std::log(lost.sum)));
  if (lost.shift_sum > 0) {
    out.set_max_log_shift(RoundedUp(lost.max_log_shift));
    out.set_log_sum_shift(RoundedUp(std::log(lost.shift_sum)));
  }
  return out;
}

v1::AcpStats ToWire(const AcpStats& stats, const ConversionContext& context) {
  v1::AcpStats out;
  out.set_blocks_total(Unsigned(stats.blocks_total));
  out.set_blocks_pruned(Unsigned(stats.blocks_pruned));
  out.set_pages_allocated(Unsigned(stats.pages_allocated));
  out.set_pages_evicted(Unsigned(stats.pages_evicted));
  out.set_peak_pages(Unsigned(stats.peak_pages));
  out.set_max_log_evicted_mass(RoundedUp(stats.max_log_evicted_mass));
  out.set_log_tolerance(static_cast<float>(stats.log_tolerance));
  if (stats.prompt_lost.sum > 0) *out.mutable_prompt_lost() = ToWire(stats.prompt_lost);
  if (stats.answer_lost.sum > 0) *out.mutable_answer_lost() = ToWire(stats.answer_lost);
  if (context.gain) {  // times the tolerance: the evicted mass leaves out what rows skip
    out.set_bound_log_prob(RoundedUp(*context.gain * std::exp(stats.log_tolerance)));
  }
  return out;
}

v1::Windows ToWire(const KeptWindows& windows, uint32_t index, const ConversionContext& context) {
  const ExecutorLimits& limits = context.limits;
  v1::Windows out;
  out.set_index(index);
  out.set_tokens(Unsigned(windows.tokens));
  out.set_layers(static_cast<uint32_t>(limits.layers));
  out.set_kv_heads(static_cast<uint32_t>(limits.lists_per_slot / std::max(limits.layers, 1)));
  out.set_page_size(kPageTokens);
  out.set_page_bytes(Unsigned(limits.page_bytes));
  out.mutable_first_page()->Assign(windows.first_pages.begin(), windows.first_pages.end());
  *out.mutable_acp() = ToWire(windows.acp, context);
  return out;
}

}  // namespace

float RoundedUp(double bound) {
  const auto nearest = static_cast<float>(bound);
  const bool below = static_cast<double>(nearest) < bound;
  return below ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

v1::GenerateDelta MakePromptEvent(const ConversionContext& context, GenerationSpec* spec) {
  v1::GenerateDelta event;
  const Request& first = spec->sequences.front();
  v1::PromptInfo* info = event.mutable_prompt();
  info->set_request_id(spec->request_id);
  info->set_model(context.served_model_name);
  info->set_prompt_tokens(static_cast<uint32_t>(first.prompt.size()));
  info->set_seed(first.sampling.seed);
  for (std::string& place : spec->relaxed) info->add_relaxed(std::move(place));
  if (!spec->echo) return event;
  info->set_text(std::exchange(spec->prompt_text, {}));
  info->mutable_token_ids()->Reserve(static_cast<int>(first.prompt.size()));
  for (int32_t id : first.prompt) info->add_token_ids(static_cast<uint32_t>(id));
  return event;
}

SequenceEvents::SequenceEvents(const GenerationSpec& spec, size_t index, Seconds arrival,
                               ServerCore& core, bool audited)
    : spec_(spec),
      core_(core),
      id_(spec.sequences[index].id),
      index_(static_cast<uint32_t>(index)),
      min_tokens_(spec.sequences[index].stop.min_tokens),
      prompt_tokens_(static_cast<int64_t>(spec.sequences[index].prompt.size())),
      arrival_(arrival),
      audited_(audited) {
  if (audited_) tokens_ = spec.sequences[index].prompt;
  if (spec.text || !spec.stop.empty()) {
    text_ = std::make_unique<TextAssembler>(*core.context.tokenizer, spec.skip_special, spec.stop,
                                            spec.include_stop);
  }
}

void SequenceEvents::ConsumeOutput(const RequestOutput& output, std::vector<CallEvent>* events) {
  if (!output.prompt_logprobs.empty()) {
    v1::GenerateDelta event;
    for (const SampledToken& token : output.prompt_logprobs) {
      AddLogprobs(token, event.mutable_prompt()->add_prompt_logprobs());
    }
    AddEvent(std::move(event), 0, events);
  }
  if (output.windows.has_value()) {
    v1::GenerateDelta event;
    *event.mutable_windows() = ToWire(*output.windows, index_, core_.context);
    AddEvent(std::move(event), 0, events);
  }
  for (const SampledToken& token : output.tokens) ConsumeToken(token);
  FlushDelta(/*force=*/false, events);
}

void SequenceEvents::CountTokens(size_t tokens, Seconds when) {
  if (tokens == 0) return;
  CallMetrics& metrics = core_.metrics();
  if (first_token_ == kNever) {
    first_token_ = when;
    metrics.time_to_first_token.Observe(when - arrival_);
  } else {
    const double each = (when - last_token_) / static_cast<double>(tokens);
    for (size_t i = 0; i < tokens; ++i) metrics.inter_token.Observe(each);
  }
  last_token_ = when;
}

void SequenceEvents::AddEvent(v1::GenerateDelta delta, int64_t tokens,
                              std::vector<CallEvent>* events) const {
  events->push_back({spec_.prompt, std::move(delta), id_, tokens});
}

void SequenceEvents::ConsumeToken(const SampledToken& token) {
  if (stopped()) return;  // sampled before the engine knew
  ++completion_tokens_;
  ++delta_tokens_;
  if (audited_) tokens_.push_back(token.id);
  if (spec_.token_ids) delta_.add_token_ids(static_cast<uint32_t>(token.id));
  if (spec_.logprobs) AddLogprobs(token, delta_.add_logprobs());
  if (text_ == nullptr) return;
  TextAssembler::Shown piece = text_->Push(token.id, completion_tokens_ >= min_tokens_);
  if (spec_.text) delta_.mutable_text()->append(piece.text);
  if (piece.stop >= 0) {
    stop_ = piece.stop;
    core_.engine.Cancel(id_, absl::OkStatus(), FinishReason::kStop);
  }
}

void SequenceEvents::FlushDelta(bool force, std::vector<CallEvent>* events) {
  if (!force && has_begun_ && !stopped() && delta_tokens_ < spec_.stream_interval) return;
  const int64_t tokens = std::exchange(delta_tokens_, 0);
  if (delta_.text().empty() && delta_.token_ids().empty() && delta_.logprobs().empty()) {
    // Held back: a reader cannot take tokens that it is not given.
    if (tokens > 0) core_.engine.Acknowledge(id_, tokens);
    return;
  }
  has_begun_ = true;
  delta_.set_index(index_);
  v1::GenerateDelta event;
  event.mutable_delta()->Swap(&delta_);
  AddEvent(std::move(event), tokens, events);
}

void SequenceEvents::EndSequence(const Finish& finish, Seconds when, std::vector<CallEvent>* events,
                                 const v1::Audit* audit) {
  if (text_ != nullptr && !stopped()) {
    TextAssembler::Shown piece = text_->Finish();
    if (spec_.text) delta_.mutable_text()->append(piece.text);
    stop_ = piece.stop;
  }
  FlushDelta(/*force=*/true, events);
  v1::GenerateDelta event;
  *event.mutable_finish() = FinishEvent(finish, audit);
  if (spec_.perf) *event.mutable_finish()->mutable_perf() = Timing(finish.stats, when);
  AddEvent(std::move(event), 0, events);
}

v1::FinishReason SequenceEvents::Reason(const Finish& finish) const {
  if (stopped()) return v1::STOP;
  if (finish.reason == FinishReason::kLength) return v1::LENGTH;
  return finish.reason == FinishReason::kAbort ? v1::ABORT : v1::STOP;
}

v1::Finish SequenceEvents::FinishEvent(const Finish& finish, const v1::Audit* audit) const {
  v1::Finish out;
  out.set_index(index_);
  out.set_reason(Reason(finish));
  if (stopped()) {
    out.set_stop_str(spec_.stop[static_cast<size_t>(stop_)]);
  } else if (finish.reason == FinishReason::kStop) {
    const std::vector<int32_t>& eos = core_.context.defaults.eos_token_ids;
    if (finish.eos || (finish.stop_token_id.has_value() &&
                       std::find(eos.begin(), eos.end(), *finish.stop_token_id) != eos.end())) {
      out.set_eos(true);
    } else if (finish.stop_token_id.has_value()) {
      out.set_stop_token_id(static_cast<uint32_t>(*finish.stop_token_id));
    }
  }
  out.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  out.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(completion_tokens_));
  out.mutable_usage()->set_cached_tokens(static_cast<uint32_t>(finish.stats.cached_tokens));
  if (spec_.acp_stats) *out.mutable_acp() = ToWire(finish.stats.acp, core_.context);
  if (audit != nullptr) *out.mutable_acp()->mutable_audit() = *audit;
  return out;
}

v1::PerfMetrics SequenceEvents::Timing(const RequestStats& stats, Seconds when) const {
  v1::PerfMetrics out;
  const bool sampled = first_token_ <= when;
  const Seconds prefilled = sampled ? first_token_ : when;
  const Seconds scheduled = std::clamp(stats.first_scheduled, arrival_, prefilled);
  out.set_queue_s(scheduled - arrival_);
  out.set_prefill_s(prefilled - scheduled);
  if (sampled) {
    out.set_ttft_s(first_token_ - arrival_);
    out.set_decode_s(when - first_token_);
  }
  out.set_e2e_s(when - arrival_);
  out.set_preemptions(static_cast<uint32_t>(stats.preemptions));
  return out;
}

}  // namespace fox
