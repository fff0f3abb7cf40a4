// SequenceEvents: see sequence_events.h.
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

// The least float32 from `bound` on: what is told is never below what was lost.
float RoundedUp(double bound) {
  const auto nearest = static_cast<float>(bound);
  const bool below = static_cast<double>(nearest) < bound;
  return below ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

v1::AcpStats ToWire(const AcpStats& stats) {
  v1::AcpStats out;
  out.set_blocks_total(Unsigned(stats.blocks_total));
  out.set_blocks_pruned(Unsigned(stats.blocks_pruned));
  out.set_pages_allocated(Unsigned(stats.pages_allocated));
  out.set_pages_evicted(Unsigned(stats.pages_evicted));
  out.set_peak_pages(Unsigned(stats.peak_pages));
  out.set_max_log_evicted_mass(RoundedUp(stats.max_log_evicted_mass));
  out.set_log_tolerance(static_cast<float>(stats.log_tolerance));
  return out;
}

v1::Windows ToWire(const KeptWindows& windows, uint32_t index, const ExecutorLimits& limits) {
  v1::Windows out;
  out.set_index(index);
  out.set_tokens(Unsigned(windows.tokens));
  out.set_layers(static_cast<uint32_t>(limits.layers));
  out.set_kv_heads(static_cast<uint32_t>(limits.lists_per_slot / std::max(limits.layers, 1)));
  out.set_page_size(kPageTokens);
  out.set_page_bytes(Unsigned(limits.page_bytes));
  out.mutable_first_page()->Assign(windows.first_pages.begin(), windows.first_pages.end());
  *out.mutable_acp() = ToWire(windows.acp);
  return out;
}

}  // namespace

SequenceEvents::SequenceEvents(const GenerationSpec& spec, size_t index, Seconds arrival,
                               const ConversionContext& context, EngineThread& engine,
                               GenerationConsumer& consumer)
    : spec_(spec),
      context_(context),
      engine_(engine),
      consumer_(consumer),
      id_(spec.sequences[index].id),
      index_(static_cast<uint32_t>(index)),
      min_tokens_(spec.sequences[index].stop.min_tokens),
      prompt_tokens_(static_cast<int64_t>(spec.sequences[index].prompt.size())),
      arrival_(arrival) {
  if (spec.text || !spec.stop.empty()) {
    text_ = std::make_unique<TextAssembler>(*context.tokenizer, spec.skip_special, spec.stop,
                                            spec.include_stop);
  }
}

absl::Status SequenceEvents::Consume(const RequestOutput& output, Seconds when) {
  absl::Status status;
  if (!output.prompt_logprobs.empty()) {
    v1::GenerateDelta event;
    for (const SampledToken& token : output.prompt_logprobs) {
      AddLogprobs(token, event.mutable_prompt()->add_prompt_logprobs());
    }
    status = consumer_.Deliver(spec_.prompt, std::move(event), id_, 0);
  }
  if (output.windows.has_value()) {
    v1::GenerateDelta event;
    *event.mutable_windows() = ToWire(*output.windows, index_, context_.limits);
    status.Update(consumer_.Deliver(spec_.prompt, std::move(event), id_, 0));
  }
  if (!output.tokens.empty()) first_token_ = std::min(first_token_, when);
  for (const SampledToken& token : output.tokens) ConsumeToken(token);
  status.Update(Flush(/*force=*/false));
  return status;
}

void SequenceEvents::ConsumeToken(const SampledToken& token) {
  if (stopped()) return;  // sampled before the engine knew
  ++completion_tokens_;
  ++delta_tokens_;
  if (spec_.token_ids) delta_.add_token_ids(static_cast<uint32_t>(token.id));
  if (spec_.logprobs) AddLogprobs(token, delta_.add_logprobs());
  if (text_ == nullptr) return;
  TextAssembler::Shown piece = text_->Push(token.id, completion_tokens_ >= min_tokens_);
  if (spec_.text) delta_.mutable_text()->append(piece.text);
  if (piece.stop >= 0) {
    stop_ = piece.stop;
    engine_.Cancel(id_, absl::OkStatus(), FinishReason::kStop);
  }
}

absl::Status SequenceEvents::Flush(bool force) {
  if (!force && delivered_ && !stopped() && delta_tokens_ < spec_.stream_interval) {
    return absl::OkStatus();
  }
  const int64_t tokens = std::exchange(delta_tokens_, 0);
  if (delta_.text().empty() && delta_.token_ids().empty() && delta_.logprobs().empty()) {
    // Held back: the reader cannot take what it is not given.
    if (tokens > 0) engine_.Acknowledge(id_, tokens);
    return absl::OkStatus();
  }
  delivered_ = true;
  delta_.set_index(index_);
  v1::GenerateDelta event;
  event.mutable_delta()->Swap(&delta_);
  return consumer_.Deliver(spec_.prompt, std::move(event), id_, tokens);
}

absl::Status SequenceEvents::End(const Finish& finish, Seconds when) {
  if (text_ != nullptr && !stopped()) {
    TextAssembler::Shown piece = text_->Finish();
    if (spec_.text) delta_.mutable_text()->append(piece.text);
    stop_ = piece.stop;
  }
  absl::Status status = Flush(/*force=*/true);
  v1::GenerateDelta event;
  *event.mutable_finish() = FinishEvent(finish);
  if (spec_.perf) *event.mutable_finish()->mutable_perf() = Timing(finish.stats, when);
  status.Update(consumer_.Deliver(spec_.prompt, std::move(event), id_, 0));
  return status;
}

v1::FinishReason SequenceEvents::Reason(const Finish& finish) const {
  if (stopped()) return v1::STOP;
  if (finish.reason == FinishReason::kLength) return v1::LENGTH;
  return finish.reason == FinishReason::kAbort ? v1::ABORT : v1::STOP;
}

v1::Finish SequenceEvents::FinishEvent(const Finish& finish) const {
  v1::Finish out;
  out.set_index(index_);
  out.set_reason(Reason(finish));
  if (stopped()) {
    out.set_stop_str(spec_.stop[static_cast<size_t>(stop_)]);
  } else if (finish.reason == FinishReason::kStop) {
    const std::vector<int32_t>& eos = context_.defaults.eos_token_ids;
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
  if (spec_.acp_stats) *out.mutable_acp() = ToWire(finish.stats.acp);
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
