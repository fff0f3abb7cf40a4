// Generation's events: engine outputs become PromptInfo, TokenDelta and Finish messages. Runs on
// the delivery pool. See generation.h.
#include <algorithm>

#include "server/generation.h"

namespace fox {
namespace {

void AddLogprobs(const SampledToken& token, v1::TokenLogprobs* out) {
  v1::TokenLogprob* own = out->mutable_token();
  own->set_token_id(static_cast<uint32_t>(token.id));
  own->set_logprob(token.logprob);
  own->set_rank(static_cast<uint32_t>(token.rank));
  for (const TokenLogprob& alternative : token.top) {
    v1::TokenLogprob* top = out->add_top();
    top->set_token_id(static_cast<uint32_t>(alternative.id));
    top->set_logprob(alternative.logprob);
    top->set_rank(static_cast<uint32_t>(alternative.rank));
  }
}

uint64_t Unsigned(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(0, value)); }

}  // namespace

void Generation::Take(Arrival arrival) {
  Sequence& sequence = sequences_[arrival.sequence];
  RequestOutput& output = arrival.output;
  if (failure_.ok()) {
    if (!output.prompt_logprobs.empty()) {
      v1::GenerateDelta event;
      for (const SampledToken& token : output.prompt_logprobs) {
        AddLogprobs(token, event.mutable_prompt()->add_prompt_logprobs());
      }
      consumer_->Deliver(std::move(event), sequence.id, 0);
    }
    if (!output.tokens.empty()) {
      sequence.first_token = std::min(sequence.first_token, arrival.when);
    }
    for (const SampledToken& token : output.tokens) TakeToken(sequence, token);
    Flush(sequence, /*all=*/false);
  }
  if (output.finish.has_value()) End(sequence, *output.finish, arrival.when);
}

void Generation::TakeToken(Sequence& sequence, const SampledToken& token) {
  if (sequence.stop >= 0) return;  // past the stop: sampled before the engine knew
  ++sequence.completion_tokens;
  ++sequence.delta_tokens;
  if (spec_.token_ids) sequence.delta.add_token_ids(static_cast<uint32_t>(token.id));
  if (spec_.logprobs) AddLogprobs(token, sequence.delta.add_logprobs());
  if (sequence.text == nullptr) return;
  TextAssembler::Piece piece =
      sequence.text->Push(token.id, sequence.completion_tokens >= sequence.min_tokens);
  if (spec_.text) sequence.delta.mutable_text()->append(piece.text);
  if (piece.stop >= 0) {
    sequence.stop = piece.stop;
    core_.engine.Cancel(sequence.id, absl::OkStatus());
  }
}

void Generation::Flush(Sequence& sequence, bool all) {
  const bool due = all || !sequence.delivered || sequence.stop >= 0 ||
                   sequence.delta_tokens >= spec_.stream_interval;
  if (!due) return;
  const int64_t tokens = std::exchange(sequence.delta_tokens, 0);
  v1::TokenDelta& delta = sequence.delta;
  if (delta.text().empty() && delta.token_ids().empty() && delta.logprobs().empty()) {
    // Held back: the reader cannot take what it is not given.
    if (tokens > 0) core_.engine.Acknowledge(sequence.id, tokens);
    return;
  }
  sequence.delivered = true;
  delta.set_index(static_cast<uint32_t>(sequence.index));
  v1::GenerateDelta event;
  event.mutable_delta()->Swap(&delta);
  consumer_->Deliver(std::move(event), sequence.id, tokens);
}

void Generation::End(Sequence& sequence, const Finish& finish, Seconds when) {
  ++finished_;
  if (failure_.ok() && !finish.status.ok() && sequence.stop < 0) Fail(finish.status);
  if (!failure_.ok()) return;
  if (sequence.text != nullptr && sequence.stop < 0) {
    TextAssembler::Piece piece = sequence.text->Finish();
    if (spec_.text) sequence.delta.mutable_text()->append(piece.text);
    sequence.stop = piece.stop;
  }
  Flush(sequence, /*all=*/true);
  completion_tokens_ += sequence.completion_tokens;
  v1::GenerateDelta event;
  *event.mutable_finish() = FinishEvent(sequence, finish);
  if (spec_.perf) *event.mutable_finish()->mutable_perf() = Timing(sequence, finish.stats, when);
  consumer_->Deliver(std::move(event), sequence.id, 0);
}

v1::Finish Generation::FinishEvent(const Sequence& sequence, const Finish& finish) const {
  v1::Finish out;
  out.set_index(static_cast<uint32_t>(sequence.index));
  if (sequence.stop >= 0) {
    out.set_reason(v1::STOP);
    out.set_stop_str(spec_.stop[static_cast<size_t>(sequence.stop)]);
  } else if (finish.reason == FinishReason::kLength) {
    out.set_reason(v1::LENGTH);
  } else if (finish.reason == FinishReason::kAbort) {
    out.set_reason(v1::ABORT);
  } else {
    out.set_reason(v1::STOP);
    const std::vector<int32_t>& eos = core_.context.defaults.eos_token_ids;
    if (finish.eos || (finish.stop_token_id.has_value() &&
                       std::find(eos.begin(), eos.end(), *finish.stop_token_id) != eos.end())) {
      out.set_eos(true);
    } else if (finish.stop_token_id.has_value()) {
      out.set_stop_token_id(static_cast<uint32_t>(*finish.stop_token_id));
    }
  }
  out.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  out.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(sequence.completion_tokens));
  if (spec_.acp_stats) *out.mutable_acp() = ToWire(finish.stats.acp);
  return out;
}

v1::PerfMetrics Generation::Timing(const Sequence& sequence, const RequestStats& stats,
                                   Seconds when) const {
  v1::PerfMetrics out;
  const bool sampled = sequence.first_token <= when;
  const Seconds prefilled = sampled ? sequence.first_token : when;
  const Seconds scheduled = std::clamp(stats.first_scheduled, arrival_, prefilled);
  out.set_queue_s(scheduled - arrival_);
  out.set_prefill_s(prefilled - scheduled);
  if (sampled) {
    out.set_ttft_s(sequence.first_token - arrival_);
    out.set_decode_s(when - sequence.first_token);
  }
  out.set_e2e_s(when - arrival_);
  out.set_preemptions(static_cast<uint32_t>(stats.preemptions));
  return out;
}

v1::AcpStats ToWire(const AcpStats& stats) {
  v1::AcpStats out;
  out.set_blocks_total(Unsigned(stats.blocks_total));
  out.set_blocks_pruned(Unsigned(stats.blocks_pruned));
  out.set_pages_allocated(Unsigned(stats.pages_allocated));
  out.set_pages_evicted(Unsigned(stats.pages_evicted));
  out.set_peak_pages(Unsigned(stats.peak_pages));
  out.set_max_log_evicted_mass(static_cast<float>(stats.max_log_evicted_mass));
  out.set_log_tolerance(static_cast<float>(stats.log_tolerance));
  return out;
}

}  // namespace fox
