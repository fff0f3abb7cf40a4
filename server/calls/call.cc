// Call: admission first, then delivery, then the writes. See call.h.
#include "server/calls/call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace fox {

Call::Call(ServerCore& core, CallInfo info, Work work, std::unique_ptr<Format> format,
           std::shared_ptr<Transport> transport)
    : core_(core),
      work_(work),
      lane_(core.delivery().NextLane()),
      format_(std::move(format)),
      transport_(std::move(transport)),
      info_(std::move(info)) {
  FOX_CHECK(format_ != nullptr && transport_ != nullptr);
}

Call::Stage Call::stage() const {
  const MutexLock lock(mutex_);
  return stage_;
}

void Call::Start(int64_t bytes) {
  const bool generates = work_ == Work::kGenerate;
  absl::Status admitted =
      generates ? core_.AdmitPrompt(&info_, bytes) : core_.AdmitTokenizing(&info_, bytes);
  if (!admitted.ok()) return OnClosed(admitted);
  if (generates) {
    const MutexLock lock(mutex_);
    FOX_CHECK(stage_ == Stage::kAdmitted && prompts_.empty());
    AddPrompt();
  }
  AdmissionPool& pool = generates ? core_.admission() : core_.tokenizing();
  pool.Post(info_.client, info_.share.bytes(),
            [self = shared_from_this()] { self->RunAdmission(); });
}

void Call::RunAdmission() {
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;  // it has ended before its turn
    FOX_CHECK(stage_ == Stage::kAdmitted);
    stage_ = Stage::kConverting;
  }
  const absl::Status status = ParseMessage();
  if (!status.ok()) OnClosed(status);
  for (size_t i = 0;; ++i) {
    PromptRun* run = nullptr;
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok() || i == prompts_.size()) break;
      run = prompts_[i].get();
    }
    ConvertPrompt(run);
  }
  const Transition lock(*this);
  if (stage_ == Stage::kConverting) stage_ = Stage::kRunning;
  if (!failure_.ok()) {  // SetFailure left the contents to this thread
    format_->DropContents();
    AccountBytes();
  }
}

absl::Status Call::ParseMessage() {
  if (core_.engine.Now() >= info_.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the request was queued");
  }
  const absl::StatusOr<CallOutline> outline = format_->ParseMessage();
  if (!outline.ok()) return outline.status();
  FOX_CHECK(outline->prompt_bytes.empty() == (work_ == Work::kTokenize));
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;  // the reader has left meanwhile
  stream_ = outline->stream;
  return AddPrompts(*outline);
}

// The share that the call came with belongs to the first prompt; each other prompt takes its own.
absl::Status Call::AddPrompts(const CallOutline& outline) {
  absl::Status admitted = core_.CheckPrompts(info_, outline.prompt_bytes);
  for (size_t i = 1; i < outline.prompt_bytes.size() && admitted.ok(); ++i) {
    shares_.push_back(std::move(info_.share));
    admitted = core_.AdmitPrompt(&info_, outline.prompt_bytes[i]);
  }
  if (!admitted.ok()) return admitted;
  while (prompts_.size() < outline.prompt_bytes.size()) AddPrompt();
  return absl::OkStatus();
}

void Call::AddPrompt() {
  core_.BeginAdmission();
  prompts_.push_back(std::make_unique<PromptRun>(*this, prompts_.size()));
  ++open_prompts_;
}

void Call::ConvertPrompt(PromptRun* run) {
  absl::StatusOr<GenerationSpec> spec = format_->ConvertPrompt(run->index);
  {
    const MutexLock lock(mutex_);
    if (std::exchange(run->decided, true)) return;  // the call has failed meanwhile
  }
  if (!spec.ok()) return EndAdmission(run, spec.status());
  run->spec = *std::move(spec);
  run->spec.prompt = run->index;
  FOX_CHECK(!run->spec.sequences.empty());
  run->registered = core_.registry().AddPrompt(info_.tenant, run->spec.request_id,
                                               {shared_from_this(), run->index});
  if (!run->registered) {
    return EndAdmission(run,
                        absl::AlreadyExistsError("request_id: a request with this id is running"));
  }
  if (!run->spec.grammar.has_value()) return SubmitPrompt(run, nullptr);
  const auto kept = core_.context.grammars->Find(
      *run->spec.grammar, info_.tenant, [this](int64_t bytes) { return PayForGrammar(bytes); });
  if (!kept.ok()) return EndAdmission(run, kept.status());
  if (*kept != nullptr) return SubmitPrompt(run, *kept);
  const absl::Status waits =
      core_.grammars().Post(info_.client, *run->spec.grammar,
                            [self = shared_from_this(), run](GrammarCompiler::Effort effort) {
                              return self->CompileGrammar(run, effort);
                            });
  if (!waits.ok()) EndAdmission(run, waits);
}

bool Call::CompileGrammar(PromptRun* run, GrammarCompiler::Effort effort) {
  std::optional<absl::Status> ended;
  {
    const MutexLock lock(mutex_);
    ended = run->cancelled;
  }
  if (core_.engine.Now() >= info_.deadline) {
    ended = absl::DeadlineExceededError("the deadline passed before the grammar was compiled");
  }
  if (ended.has_value()) {
    EndAdmission(run, ended->ok() ? absl::CancelledError("aborted in admission") : *ended);
    return true;
  }
  const auto grammar = core_.context.grammars->Compile(
      *run->spec.grammar, info_.tenant, [this](int64_t bytes) { return PayForGrammar(bytes); },
      effort);
  if (absl::IsAborted(grammar.status())) return false;
  if (grammar.ok()) {
    SubmitPrompt(run, *grammar);
  } else {
    const absl::Status& status = grammar.status();
    EndAdmission(run, absl::Status(status.code(),
                                   absl::StrCat(run->spec.grammar_field, ": ", status.message())));
  }
  return true;
}

absl::StatusOr<std::shared_ptr<void>> Call::PayForGrammar(int64_t bytes) const {
  const std::shared_ptr<CallBudget>& memory = core_.grammar_memory();
  absl::StatusOr<CallBudget::Share> share = memory->TakeShare(info_.client, bytes);
  if (!share.ok()) return absl::ResourceExhaustedError("grammars in use fill their memory");
  return std::make_shared<std::pair<std::shared_ptr<CallBudget>, CallBudget::Share>>(
      memory, *std::move(share));  // the share goes first
}

void Call::SubmitPrompt(PromptRun* run, const std::shared_ptr<const Grammar>& grammar) {
  GenerationSpec& spec = run->spec;
  spec.grammar.reset();
  run->totals.sequences = static_cast<int64_t>(spec.sequences.size());
  run->totals.prompt_tokens = static_cast<int64_t>(spec.sequences.front().prompt.size());
  run->prompt_event = MakePromptEvent(core_.context, &spec);
  std::vector<RequestId> ids;
  run->sequences.reserve(spec.sequences.size());
  run->cache_salt = absl::StrCat(info_.tenant, "/", spec.sequences.front().cache_salt);
  run->bypass_prefix_cache = spec.sequences.front().bypass_prefix_cache;
  for (size_t i = 0; i < spec.sequences.size(); ++i) {
    Request& request = spec.sequences[i];
    request.id = ids.emplace_back(core_.engine.NextId());
    request.grammar = grammar;
    request.client = info_.client;
    request.tenant = info_.tenant;
    request.cache_salt = run->cache_salt;
    request.deadline = info_.deadline;
    if (spec.queue_timeout_ms > 0) {
      request.queue_deadline = info_.arrival + static_cast<double>(spec.queue_timeout_ms) / 1000;
    }
    request.trace_parent = info_.trace.parent;
    run->sequences.emplace_back(spec, i, info_.arrival, core_,
                                spec.audit || core_.auditor().Samples());
  }
  core_.engine.Submit(std::exchange(spec.sequences, {}),
                      std::shared_ptr<SubmissionListener>(shared_from_this(), run), lane_);
  std::optional<absl::Status> cancelled;
  {
    const MutexLock lock(mutex_);
    run->ids = ids;
    cancelled = run->cancelled;  // by a cancellation that knew no ids yet
  }
  if (!cancelled.has_value()) return;
  for (RequestId id : ids) core_.engine.Cancel(id, *cancelled);
}

void Call::EndAdmission(PromptRun* run, const absl::Status& status) {
  core_.EndAdmission();
  PostBegin(run, status);
}

void Call::PostBegin(PromptRun* run, const absl::Status& status) {
  RequestOutput output;  // of no request
  if (!status.ok()) output.finish.emplace().status = status;
  core_.delivery().Post(
      lane_, {std::shared_ptr<SubmissionListener>(shared_from_this(), run), std::move(output), 0});
}

void Call::ReceiveOutput(PromptRun* run, RequestOutput output, Seconds when) {
  if (run->done) return;
  if (output.id != 0) {
    ConsumeOutput(run, output, when);
  } else if (!output.finish.has_value()) {
    events_.push_back(
        {run->index, std::exchange(run->prompt_event, {}), run->sequences.front().id(), 0});
    FailPrompt(run, DeliverEvents());
  } else {
    run->failure = output.finish->status;
    run->finished = run->sequences.size();
  }
  if (run->finished == run->sequences.size()) CompletePrompt(run);
}

void Call::ConsumeOutput(PromptRun* run, const RequestOutput& output, Seconds when) {
  SequenceEvents& sequence = FindSequence(run, output.id);
  sequence.CountTokens(output.tokens.size(), when);
  if (run->failure.ok()) {
    sequence.ConsumeOutput(output, &events_);
    FailPrompt(run, DeliverEvents());
  }
  if (!output.finish.has_value()) return;
  const Finish& finish = *output.finish;
  core_.metrics().OnSequenceEnd(finish.stats, info_.arrival, sequence.first_token(), when);
  run->totals.AddSequence(finish.stats, sequence.completion_tokens(), sequence.first_token());
  if (!finish.status.ok() && !sequence.stopped()) FailPrompt(run, finish.status);
  if (run->failure.ok() && StartAudit(run, &sequence, output, when)) return;
  EndSequence(run, &sequence, finish, nullptr, when);
}

SequenceEvents& Call::FindSequence(PromptRun* run, RequestId id) {
  const auto found = std::find_if(run->sequences.begin(), run->sequences.end(),
                                  [id](const SequenceEvents& s) { return s.id() == id; });
  FOX_CHECK(found != run->sequences.end());
  return *found;
}

void Call::EndSequence(PromptRun* run, SequenceEvents* sequence, const Finish& finish,
                       const v1::Audit* audit, Seconds when) {
  ++run->finished;
  FOX_CHECK(run->finished <= run->sequences.size());
  if (!run->failure.ok()) return;
  run->totals.reason = sequence->Reason(finish);
  core_.metrics().OnSequenceEnd(run->totals.reason);
  sequence->EndSequence(finish, when, &events_, audit);
  FailPrompt(run, DeliverEvents());
}

absl::Status Call::DeliverEvents() {
  if (events_.empty()) return absl::OkStatus();
  absl::Status failure;
  bool hangs = false;
  {
    const Transition lock(*this);
    if (failure_.ok()) {
      FOX_CHECK(stage_ == Stage::kConverting || stage_ == Stage::kRunning);
      for (CallEvent& event : events_) format_->AddEvent(std::move(event));
      if (!AccountBytes()) {
        SetFailure(NoRoom());
        hangs = writing_;
      }
    }
    failure = failure_;
  }
  events_.clear();
  // The prompt that these events are of has not ended: the transport still waits for the end.
  if (hangs) transport_->AbandonReader(failure);
  return failure;
}

void Call::FailPrompt(PromptRun* run, const absl::Status& status) {
  if (status.ok() || !run->failure.ok()) return;
  run->failure = status;
  CancelPrompt(run, status);
}

void Call::CompletePrompt(PromptRun* run) {
  FOX_CHECK(!run->done);
  run->done = true;
  LogPromptEnd(info_, run->spec.request_id, run->failure, run->totals, core_.engine.Now());
  core_.metrics().OnCallEnd(run->failure, run->totals.reason);
  if (run->registered) core_.registry().RemovePrompt(info_.tenant, run->spec.request_id);
  run->sequences.clear();  // other prompts may run for long
  run->spec = {};
  const Transition lock(*this);
  FOX_CHECK(open_prompts_ > 0);
  --open_prompts_;
  if (!run->failure.ok()) SetFailure(run->failure);
}

void Call::OnWritten() {
  Format::Output written;
  {
    const Transition lock(*this);
    FOX_CHECK(writing_);
    writing_ = false;
    written = std::exchange(in_flight_, {});
    in_flight_bytes_ = 0;
    AccountBytes();
  }
  for (const auto& [sequence, tokens] : written.tokens) core_.engine.Acknowledge(sequence, tokens);
}

// A stream begins with it, if need be: proxies close connections that are silent for a minute. A
// failure afterwards is an event of the stream.
void Call::OnSilence() {
  const Transition lock(*this);
  if (!stream_ || !failure_.ok() || stage_ >= Stage::kDraining) return;
  format_->AddKeepAlive();
}

void Call::OnReleased() {
  const Transition lock(*this);
  FOX_CHECK(!released_ && stage_ != Stage::kEnded);
  FOX_CHECK(stage_ == Stage::kDraining || !failure_.ok());  // it was closed before
  released_ = true;
  writing_ = false;
}

void Call::AbortPrompt(size_t prompt) { CancelPrompt(FindPrompt(prompt), absl::OkStatus()); }

void Call::AbandonPrompt(size_t prompt, const absl::Status& status) {
  PromptRun* const run = FindPrompt(prompt);
  CancelPrompt(run, status);
  {
    const MutexLock lock(mutex_);
    if (run->ids.empty()) return;  // it has ended, or admission still works on it
  }
  PostBegin(run, status);
}

Call::PromptRun* Call::FindPrompt(size_t prompt) {
  const MutexLock lock(mutex_);
  FOX_CHECK(prompt < prompts_.size());
  return prompts_[prompt].get();
}

void Call::CancelPrompt(PromptRun* run, const absl::Status& status) {
  std::vector<RequestId> ids;
  {
    const MutexLock lock(mutex_);
    FOX_CHECK(run->decided);
    if (run->cancelled.has_value()) return;
    run->cancelled = status;
    ids = run->ids;
  }
  for (RequestId id : ids) core_.engine.Cancel(id, status);
}

void Call::OnClosed(const absl::Status& reason) {
  const Transition lock(*this);
  SetFailure(reason);
}

void Call::SetFailure(const absl::Status& reason) {
  FOX_CHECK(!reason.ok());
  if (!failure_.ok() || stage_ >= Stage::kDraining) return;
  failure_ = reason;
  if (stage_ == Stage::kConverting) return;  // an admission thread uses the format
  format_->DropContents();
  AccountBytes();
}

bool Call::AccountBytes() {
  if (stage_ == Stage::kEnded) return true;  // a call may end while its admission still runs
  if (stage_ == Stage::kConverting && !failure_.ok()) return true;
  const int64_t bytes = format_->held_bytes() + in_flight_bytes_;
  FOX_CHECK(bytes >= 0);
  if (!info_.share.Hold(bytes - accounted_bytes_)) return false;
  accounted_bytes_ = bytes;
  return true;
}

absl::Status Call::NoRoom() const {
  const int64_t more = format_->held_bytes() + in_flight_bytes_ - accounted_bytes_;
  int64_t others = 0;
  for (const CallBudget::Share& share : shares_) others += share.bytes();
  // A call that waits for no reader, and alone holds too much, never finds room.
  return !writing_ && info_.share.Exceeds(more, others) ? AnswerTooLarge() : AnswersUnread();
}

// The analysis does not follow a reference that the lock's owner holds.
Call::Transition::~Transition() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Step step = call_.NextStep();
  call_.mutex_.Unlock();
  call_.PerformStep(std::move(step));
}

Call::Step Call::NextStep() {
  Step step;
  step.failure = failure_;
  if (!failure_.ok()) CollectCancelled(&step);
  const bool last = open_prompts_ == 0 && (stage_ >= Stage::kRunning || !failure_.ok());
  if (released_ && last) EndCall();
  if (writing_ || stage_ >= Stage::kDraining) return step;
  if (!last && !(stream_ && failure_.ok() && format_->HasOutput())) return step;
  if (failure_.ok()) {
    in_flight_ = format_->TakeOutput(last);
    in_flight_bytes_ = static_cast<int64_t>(in_flight_.bytes.size());
    // The events of a stream were accounted for when they came, in a form that is no smaller.
    if (!AccountBytes() && last && !stream_) {
      const absl::Status full = NoRoom();
      in_flight_bytes_ = 0;
      SetFailure(full);
    }
  }
  step.failure = failure_;
  step.stream_has_begun = std::exchange(begun_, true);
  step.bytes = std::exchange(in_flight_.bytes, {});
  if (last && (!failure_.ok() || !format_->HasOutput())) {
    step.action = Step::kEnd;
    stage_ = Stage::kDraining;
  } else {
    FOX_CHECK(failure_.ok());
    step.action = Step::kWrite;
    writing_ = true;
  }
  return step;
}

void Call::EndCall() {
  if (stage_ == Stage::kEnded) return;
  FOX_CHECK(open_prompts_ == 0);
  stage_ = Stage::kEnded;
  shares_.clear();
  info_.share = CallBudget::Share();
}

void Call::CollectCancelled(Step* step) {
  for (const std::unique_ptr<PromptRun>& run : prompts_) {
    if (!std::exchange(run->decided, true)) step->undecided.push_back(run.get());
    if (run->cancelled.has_value()) continue;
    run->cancelled = failure_;
    step->cancelled.insert(step->cancelled.end(), run->ids.begin(), run->ids.end());
  }
}

void Call::PerformStep(Step step) {
  for (PromptRun* run : step.undecided) EndAdmission(run, step.failure);
  for (RequestId id : step.cancelled) core_.engine.Cancel(id, step.failure);
  if (step.action == Step::kWrite) transport_->Write(std::move(step.bytes));
  if (step.action != Step::kEnd) return;
  if (!step.failure.ok()) {
    step.bytes = format_->EncodeFailure(step.failure, step.stream_has_begun);
  }
  transport_->EndAnswer(step.failure, std::move(step.bytes), core_.RetryAfterMs());
}

bool AbortCalls(ServerCore& core, const CallInfo& caller, const std::string& request_id) {
  const auto found = core.registry().FindPrompts(caller, request_id);
  for (const auto& [call, prompt] : found) call->AbortPrompt(prompt);
  return !found.empty();
}

void AbandonCalls(ServerCore& core, const absl::Status& status) {
  for (const auto& [call, prompt] : core.registry().AllPrompts()) {
    call->AbandonPrompt(prompt, status);
  }
}

}  // namespace fox
