// Generation: see generation.h. Admission first, then delivery. Events are built in
// generation_events.cc.
#include "server/generation.h"

#include "absl/strings/str_cat.h"
#include "server/log.h"

namespace fox {

Generation::Generation(ServerCore& core, std::string request_id, Seconds deadline,
                       GenerationConsumer* consumer)
    : core_(core),
      request_id_(std::move(request_id)),
      deadline_(deadline),
      arrival_(core.engine.Now()),
      consumer_(consumer) {}

absl::StatusOr<std::shared_ptr<Generation>> Generation::Start(ServerCore& core,
                                                              const std::string& request_id,
                                                              Seconds deadline, Convert convert,
                                                              GenerationConsumer* consumer) {
  absl::Status status = core.CheckAdmission();
  if (!status.ok()) return status;
  std::shared_ptr<Generation> generation(new Generation(core, request_id, deadline, consumer));
  if (!core.registry.Add(request_id, generation)) {
    return absl::AlreadyExistsError("request_id: a request with this id is running");
  }
  ++core.admitting;
  core.admission.Post([generation, convert = std::move(convert)] { generation->Admit(convert); });
  return generation;
}

void Generation::Cancel(const absl::Status& status) {
  std::vector<RequestId> ids;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_.has_value()) return;
    cancelled_ = status;
    ids = ids_;
  }
  for (RequestId id : ids) core_.engine.Cancel(id, status);
}

void Generation::Admit(const Convert& convert) {
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_.has_value()) status = *cancelled_;  // gone before any work was done
  }
  if (status.ok() && core_.engine.Now() >= deadline_) {
    status = absl::DeadlineExceededError("the deadline passed before the request was queued");
  }
  if (!status.ok()) return Admitted(status);
  absl::StatusOr<GenerationSpec> spec = convert();
  if (!spec.ok()) return Admitted(spec.status());
  spec_ = *std::move(spec);
  undecided_ = spec_.sequences.size();
  for (size_t i = 0; i < spec_.sequences.size(); ++i) {
    core_.submission.Post([self = shared_from_this(), i] { self->SubmitOne(i); });
  }
}

void Generation::SubmitOne(size_t sequence) {
  const absl::Status status = Submit(sequence);
  absl::Status refusal;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refusal_.Update(status);
    if (--undecided_ > 0) return;
    refusal = refusal_;
  }
  Admitted(refusal);
}

absl::Status Generation::Submit(size_t sequence) {
  Request& request = spec_.sequences[sequence];
  request.id = core_.engine.NextId();
  request.deadline = deadline_;
  if (spec_.queue_timeout_ms > 0) {
    request.queue_deadline = arrival_ + static_cast<double>(spec_.queue_timeout_ms) / 1000;
  }
  absl::Status status =
      core_.engine.Submit(request, [self = shared_from_this(), sequence](RequestOutput output) {
        self->OnOutput(sequence, std::move(output));
      });
  if (!status.ok()) return status;
  std::optional<absl::Status> cancelled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ids_.push_back(request.id);
    cancelled = cancelled_;
  }
  if (cancelled.has_value()) core_.engine.Cancel(request.id, *cancelled);
  return absl::OkStatus();
}

void Generation::Admitted(const absl::Status& status) {
  --core_.admitting;
  std::vector<RequestId> ids;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    admitted_ = status;
    ids = ids_;
    Schedule();
  }
  if (status.ok()) return;
  for (RequestId id : ids) core_.engine.Cancel(id, status);
}

void Generation::OnOutput(size_t sequence, RequestOutput output) {
  const Seconds now = core_.engine.Now();
  std::lock_guard<std::mutex> lock(mutex_);
  inbox_.push_back({sequence, std::move(output), now});
  if (admitted_.has_value()) Schedule();
}

void Generation::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  core_.delivery.Post([self = shared_from_this()] { self->Pump(); });
}

void Generation::Pump() {
  if (!begun_) Begin();
  for (;;) {
    std::vector<Arrival> arrivals;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (inbox_.empty() && finished_ < submitted_) {
        scheduled_ = false;
        return;
      }
      arrivals = std::exchange(inbox_, {});
    }
    for (Arrival& arrival : arrivals) Take(std::move(arrival));
    if (finished_ == submitted_) return Complete();  // `scheduled_` stays: nothing follows
  }
}

void Generation::Begin() {
  begun_ = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    submitted_ = ids_.size();
    failure_ = *admitted_;
  }
  if (submitted_ == 0) return;
  prompt_tokens_ = static_cast<int64_t>(spec_.sequences[0].prompt.size());
  for (size_t i = 0; i < spec_.sequences.size(); ++i) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.id = spec_.sequences[i].id;
    sequence.index = static_cast<int32_t>(i);
    sequence.min_tokens = spec_.sequences[i].stop.min_tokens;
    if (spec_.text || !spec_.stop.empty()) {
      sequence.text = std::make_unique<TextAssembler>(*core_.context.tokenizer, spec_.skip_special,
                                                      spec_.stop, spec_.include_stop);
    }
  }
  if (!failure_.ok()) return;
  v1::GenerateDelta event;
  v1::PromptInfo* info = event.mutable_prompt();
  info->set_request_id(request_id_);
  info->set_model(core_.context.served_model_name);
  info->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  info->set_seed(spec_.sequences[0].sampling.seed);
  if (spec_.echo) {
    info->set_text(std::move(spec_.prompt_text));
    for (int32_t id : spec_.sequences[0].prompt) info->add_token_ids(static_cast<uint32_t>(id));
  }
  consumer_->Deliver(std::move(event), sequences_[0].id, 0);
}

void Generation::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  Cancel(status);
}

void Generation::Complete() {
  const double seconds = core_.engine.Now() - arrival_;
  if (failure_.ok()) core_.RecordDuration(seconds);
  Log(LogLevel::kInfo, "request finished",
      {{"request_id", request_id_},
       {"status", std::string(absl::StatusCodeToString(failure_.code()))},
       {"sequences", static_cast<int64_t>(submitted_)},
       {"prompt_tokens", prompt_tokens_},
       {"completion_tokens", completion_tokens_},
       {"e2e_s", seconds}});
  core_.registry.Remove(request_id_);
  consumer_->Done(failure_);
}

}  // namespace fox
