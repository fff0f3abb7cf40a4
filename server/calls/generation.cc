// Generation: see generation.h. Admission first, then delivery.
#include "server/calls/generation.h"

#include <algorithm>
#include <utility>

#include "server/process/log.h"

namespace fox {
Generation::Generation(ServerCore& core, const CallInfo& info,
                       std::unique_ptr<GenerationSource> source,
                       std::shared_ptr<GenerationConsumer> consumer)
    : core_(core),
      info_(info),
      consumer_(std::move(consumer)),
      lane_(core.delivery().NextLane()),
      source_(std::move(source)) {
  core.BeginAdmission();
}

std::shared_ptr<Generation> Generation::Start(ServerCore& core, const CallInfo& info,
                                              std::unique_ptr<GenerationSource> source,
                                              std::shared_ptr<GenerationConsumer> consumer) {
  std::shared_ptr<Generation> generation(
      new Generation(core, info, std::move(source), std::move(consumer)));
  core.admission().Post(info.client, info.share.bytes(), [generation] { generation->Convert(); });
  return generation;
}

std::shared_ptr<Generation> Generation::StartConverted(
    ServerCore& core, const CallInfo& info, absl::StatusOr<GenerationSpec> spec,
    std::shared_ptr<GenerationConsumer> consumer) {
  std::shared_ptr<Generation> generation(new Generation(core, info, nullptr, std::move(consumer)));
  generation->Admit(std::move(spec));
  return generation;
}

void Generation::Cancel(const absl::Status& status) {
  std::vector<RequestId> ids;
  std::unique_ptr<GenerationSource> dropped;  // with the client's message
  bool in_admission = false;
  {
    const MutexLock lock(mutex_);
    if (cancelled_.has_value()) return;
    cancelled_ = status;
    ids = submitted_;
    in_admission = !std::exchange(decided_, true);
    dropped = std::move(source_);
  }
  if (in_admission)
    OnSubmitted(status.ok() ? absl::CancelledError("aborted in admission") : status);
  for (RequestId id : ids) core_.engine.Cancel(id, status);
}

void Generation::Abandon(const absl::Status& status) {
  Cancel(status);
  {
    const MutexLock lock(mutex_);
    if (submitted_.empty()) return;  // it has ended, or admission still uses the consumer's
  }
  Begin(status);
}

void Generation::Convert() {
  std::unique_ptr<GenerationSource> source;
  bool late = false;
  {
    const MutexLock lock(mutex_);
    if (decided_) return;  // cancelled: what the consumer owns may be gone
    late = core_.engine.Now() >= info_.deadline;
    source = std::move(source_);
  }
  absl::StatusOr<GenerationSpec> spec =
      absl::DeadlineExceededError("the deadline passed before the request was queued");
  if (!late) spec = source->Convert();
  source = nullptr;
  Admit(std::move(spec));
}

void Generation::Admit(absl::StatusOr<GenerationSpec> spec) {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(decided_, true)) return;
  }
  if (!spec.ok()) return OnSubmitted(spec.status());
  spec_ = *std::move(spec);
  entered_ = core_.Enter(info_.tenant, spec_.request_id, shared_from_this());
  if (!entered_) {
    return OnSubmitted(absl::AlreadyExistsError("request_id: a request with this id is running"));
  }
  if (!spec_.grammar.has_value()) return Submit(nullptr);
  const auto kept = core_.context.grammars->Find(
      *spec_.grammar, info_.tenant, [this](int64_t bytes) { return PayForGrammar(bytes); });
  if (!kept.ok()) return OnSubmitted(kept.status());
  if (*kept != nullptr) return Submit(*kept);
  const absl::Status waits = core_.grammars().Post(
      info_.client, *spec_.grammar,
      [self = shared_from_this()](auto effort) { return self->CompileGrammar(effort); });
  if (!waits.ok()) OnSubmitted(waits);
}

bool Generation::CompileGrammar(GrammarCompiler::Effort effort) {
  std::optional<absl::Status> ended;
  {
    const MutexLock lock(mutex_);
    ended = cancelled_;
  }
  if (core_.engine.Now() >= info_.deadline) {
    ended = absl::DeadlineExceededError("the deadline passed before the grammar was compiled");
  }
  if (ended.has_value()) {
    OnSubmitted(ended->ok() ? absl::CancelledError("aborted in admission") : *ended);
    return true;
  }
  const auto grammar = core_.context.grammars->Compile(
      *spec_.grammar, info_.tenant, [this](int64_t bytes) { return PayForGrammar(bytes); }, effort);
  if (absl::IsAborted(grammar.status())) return false;
  if (grammar.ok()) {
    Submit(*grammar);
  } else {
    const absl::Status& status = grammar.status();
    OnSubmitted(
        absl::Status(status.code(), absl::StrCat(spec_.grammar_field, ": ", status.message())));
  }
  return true;
}

absl::StatusOr<std::shared_ptr<void>> Generation::PayForGrammar(int64_t bytes) const {
  const std::shared_ptr<CallBudget>& memory = core_.grammar_memory();
  absl::StatusOr<CallBudget::Share> share = memory->Take(info_.client, bytes);
  if (!share.ok()) return absl::ResourceExhaustedError("grammars in use fill their memory");
  return std::make_shared<std::pair<std::shared_ptr<CallBudget>, CallBudget::Share>>(
      memory, *std::move(share));  // the share goes first
}

void Generation::Submit(const std::shared_ptr<const Grammar>& grammar) {
  spec_.grammar.reset();
  v1::PromptInfo* info = prompt_event_.mutable_prompt();
  const Request& first = spec_.sequences.front();
  prompt_tokens_ = static_cast<int64_t>(first.prompt.size());
  info->set_request_id(spec_.request_id);
  info->set_model(core_.context.served_model_name);
  info->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  info->set_seed(first.sampling.seed);
  for (std::string& place : spec_.relaxed) info->add_relaxed(std::move(place));
  if (spec_.echo) {
    info->set_text(std::exchange(spec_.prompt_text, {}));
    info->mutable_token_ids()->Reserve(static_cast<int>(first.prompt.size()));
    for (int32_t id : first.prompt) info->add_token_ids(static_cast<uint32_t>(id));
  }
  std::vector<RequestId> ids;
  sequences_.reserve(spec_.sequences.size());
  for (size_t i = 0; i < spec_.sequences.size(); ++i) {
    Request& request = spec_.sequences[i];
    request.id = ids.emplace_back(core_.engine.NextId());
    request.grammar = grammar;
    request.client = info_.client;
    request.tenant = info_.tenant;
    request.cache_salt = absl::StrCat(info_.tenant, "/", request.cache_salt);
    request.deadline = info_.deadline;
    if (spec_.queue_timeout_ms > 0) {
      request.queue_deadline = info_.arrival + static_cast<double>(spec_.queue_timeout_ms) / 1000;
    }
    request.trace_parent = info_.trace.parent;
    times_.emplace_back();
    sequences_.emplace_back(spec_, i, info_.arrival, core_.context, core_.engine, *consumer_);
  }
  core_.engine.Submit(std::exchange(spec_.sequences, {}), shared_from_this());
  std::optional<absl::Status> cancelled;
  {
    const MutexLock lock(mutex_);
    submitted_ = ids;
    cancelled = cancelled_;  // by a Cancel that knew no ids yet
  }
  if (!cancelled.has_value()) return;
  for (RequestId id : ids) core_.engine.Cancel(id, *cancelled);
}

void Generation::OnSubmitted(const absl::Status& status) {
  core_.EndAdmission();
  Begin(status);
}

void Generation::OnOutput(RequestOutput output) {
  core_.delivery().Stage(lane_, {shared_from_this(), std::move(output)});
}

void Generation::Begin(const absl::Status& status) {
  RequestOutput output;  // of no request
  if (!status.ok()) output.finish.emplace().status = status;
  core_.delivery().Post(lane_, {shared_from_this(), std::move(output)});
}

void Generation::Receive(RequestOutput output, Seconds when) {
  if (done_) return;
  if (output.id != 0) {
    Consume(output, when);
  } else if (!output.finish.has_value()) {
    Fail(consumer_->Deliver(spec_.prompt, std::exchange(prompt_event_, {}), sequences_.front().id(),
                            0));
  } else {
    failure_ = output.finish->status;
    finished_ = sequences_.size();
  }
  if (finished_ == sequences_.size()) Complete();
}

void Generation::Consume(const RequestOutput& output, Seconds when) {
  const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                     [&](const auto& s) { return s.id() == output.id; });
  TokenTimes& times = times_[static_cast<size_t>(sequence - sequences_.begin())];
  times.Add(output.tokens.size(), info_.arrival, when, &core_.metrics());
  if (failure_.ok()) Fail(sequence->Consume(output, when));
  if (!output.finish.has_value()) return;
  ++finished_;
  core_.metrics().OnSequenceEnd(output.finish->stats, info_.arrival, times.first(), when);
  totals_.Add(*sequence, output.finish->stats);
  if (!output.finish->status.ok() && !sequence->stopped()) Fail(output.finish->status);
  if (!failure_.ok()) return;
  totals_.reason = sequence->Reason(*output.finish);
  core_.metrics().OnSequenceEnd(totals_.reason);
  Fail(sequence->End(*output.finish, when));
}

void Generation::Totals::Add(const SequenceEvents& sequence, const RequestStats& stats) {
  completion_tokens += sequence.completion_tokens();
  preemptions += stats.preemptions;
  peak_pages += stats.acp.peak_pages;
  pages_evicted += stats.acp.pages_evicted;
  first_token = std::min(first_token, sequence.first_token());
  if (stats.first_scheduled > 0) scheduled = std::min(scheduled, stats.first_scheduled);
}

void Generation::Fail(const absl::Status& status) {
  if (status.ok() || !failure_.ok()) return;
  failure_ = status;
  Cancel(status);
}

void Generation::Complete() {
  done_ = true;
  const Seconds now = core_.engine.Now();
  LogEnd(now);
  core_.metrics().OnCallEnd(failure_, totals_.reason);
  if (entered_) core_.Leave(info_.tenant, spec_.request_id);
  std::exchange(consumer_, nullptr)->Done(failure_);
}

void Generation::LogEnd(Seconds end) const {
  const Seconds scheduled = std::clamp(totals_.scheduled, info_.arrival, end);
  const Seconds first_token = std::clamp(totals_.first_token, scheduled, end);
  const double running = std::max(end - scheduled, 1e-6);
  std::vector<LogField> fields = {
      {"request_id", spec_.request_id},
      {"method", info_.method},
      {"peer", info_.peer},
      {"status", std::string(absl::StatusCodeToString(failure_.code()))},
      {"finish_reason", failure_.ok() ? v1::FinishReason_Name(totals_.reason) : ""},
      {"sequences", static_cast<int64_t>(sequences_.size())},
      {"prompt_tokens", prompt_tokens_},
      {"completion_tokens", totals_.completion_tokens},
      {"queue_s", scheduled - info_.arrival},
      {"ttft_s", first_token - info_.arrival},
      {"e2e_s", end - info_.arrival},
      {"tokens_per_s", static_cast<double>(totals_.completion_tokens) / running},
      {"preemptions", totals_.preemptions},
      {"peak_pages", totals_.peak_pages},
      {"pages_evicted", totals_.pages_evicted}};
  info_.trace.AddTo(&fields);
  Log(LogLevel::kInfo, "request finished", fields);
}

}  // namespace fox
