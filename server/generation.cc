// Generation: see generation.h. Admission first, then delivery.
#include "server/generation.h"

#include <algorithm>
#include <utility>

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
  std::shared_ptr<Generation> generation(new Generation(core, request_id, deadline, consumer));
  if (!core.Enter(request_id, generation)) {
    return absl::AlreadyExistsError("request_id: a request with this id is running");
  }
  core.admission().Post([generation, convert = std::move(convert)] { generation->Admit(convert); });
  return generation;
}

void Generation::Cancel(const absl::Status& status) {
  std::vector<RequestId> ids;
  {
    const MutexLock lock(mutex_);
    if (cancelled_.has_value()) return;
    cancelled_ = status;
    ids = running_;
  }
  for (RequestId id : ids) core_.engine.Cancel(id, status);
}

void Generation::Admit(const Convert& convert) {
  absl::Status status;
  {
    const MutexLock lock(mutex_);
    if (cancelled_.has_value()) status = *cancelled_;  // gone before any work was done
  }
  if (status.ok() && core_.engine.Now() >= deadline_) {
    status = absl::DeadlineExceededError("the deadline passed before the request was queued");
  }
  if (!status.ok()) return OnAdmitted(status);
  absl::StatusOr<GenerationSpec> spec = convert();
  if (!spec.ok()) return OnAdmitted(spec.status());
  Submit(*std::move(spec));
}

void Generation::Submit(GenerationSpec spec) {
  spec_ = std::move(spec);
  v1::PromptInfo* info = prompt_event_.mutable_prompt();
  const Request& first = spec_.sequences.front();
  prompt_tokens_ = static_cast<int64_t>(first.prompt.size());
  info->set_request_id(request_id_);
  info->set_model(core_.context.served_model_name);
  info->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
  info->set_seed(first.sampling.seed);
  if (spec_.echo) {
    info->set_text(std::move(spec_.prompt_text));
    for (int32_t id : first.prompt) info->add_token_ids(static_cast<uint32_t>(id));
  }
  for (size_t i = 0; i < spec_.sequences.size(); ++i) {
    Request& request = spec_.sequences[i];
    request.id = core_.engine.NextId();
    request.deadline = deadline_;
    if (spec_.queue_timeout_ms > 0) {
      request.queue_deadline = arrival_ + static_cast<double>(spec_.queue_timeout_ms) / 1000;
    }
    sequences_.emplace_back(spec_, i, arrival_, core_.context, core_.engine, *consumer_);
  }
  core_.engine.Submit(
      std::move(spec_.sequences),
      [self = shared_from_this()](RequestOutput output) { self->OnOutput(std::move(output)); },
      [self = shared_from_this()](const absl::Status& status) { self->OnAdmitted(status); });
}

void Generation::OnAdmitted(const absl::Status& status) {
  core_.EndAdmission();
  std::vector<RequestId> ids;
  std::optional<absl::Status> cancelled;
  if (status.ok()) {
    for (const SequenceEvents& sequence : sequences_) ids.push_back(sequence.id());
  }
  {
    const MutexLock lock(mutex_);
    refusal_ = status;
    running_ = ids;
    cancelled = cancelled_;  // by a Cancel that knew no ids yet
    ScheduleDelivery();
  }
  if (!cancelled.has_value()) return;
  for (RequestId id : ids) core_.engine.Cancel(id, *cancelled);
}

void Generation::OnOutput(RequestOutput output) {
  const Seconds now = core_.engine.Now();
  const MutexLock lock(mutex_);
  inbox_.push_back({std::move(output), now});
  ScheduleDelivery();
}

void Generation::ScheduleDelivery() {
  if (scheduled_) return;
  scheduled_ = true;
  core_.delivery().Post([self = shared_from_this()] { self->DrainInbox(); });
}

void Generation::DrainInbox() {
  if (!begun_) Begin();
  while (finished_ < sequences_.size()) {
    std::vector<InboxEntry> entries;
    {
      const MutexLock lock(mutex_);
      if (inbox_.empty()) {
        scheduled_ = false;
        return;
      }
      entries = std::exchange(inbox_, {});
    }
    for (const InboxEntry& entry : entries) Consume(entry);
  }
  Complete();  // `scheduled_` stays: nothing follows
}

void Generation::Begin() {
  begun_ = true;
  {
    const MutexLock lock(mutex_);
    failure_ = refusal_;
  }
  if (!failure_.ok()) return sequences_.clear();
  consumer_->Deliver(std::move(prompt_event_), sequences_.front().id(), 0);
}

void Generation::Consume(const InboxEntry& entry) {
  const RequestOutput& output = entry.output;
  const auto sequence = std::find_if(sequences_.begin(), sequences_.end(),
                                     [&](const auto& s) { return s.id() == output.id; });
  if (failure_.ok()) sequence->Consume(output, entry.when);
  if (!output.finish.has_value()) return;
  ++finished_;
  if (!output.finish->status.ok() && !sequence->stopped()) Fail(output.finish->status);
  if (failure_.ok()) sequence->End(*output.finish, entry.when);
}

void Generation::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  Cancel(status);
}

void Generation::Complete() {
  const double seconds = core_.engine.Now() - arrival_;
  if (failure_.ok()) core_.RecordDuration(seconds);
  int64_t completion_tokens = 0;
  for (const SequenceEvents& sequence : sequences_) {
    completion_tokens += sequence.completion_tokens();
  }
  Log(LogLevel::kInfo, "request finished",
      {{"request_id", request_id_},
       {"status", std::string(absl::StatusCodeToString(failure_.code()))},
       {"sequences", static_cast<int64_t>(sequences_.size())},
       {"prompt_tokens", prompt_tokens_},
       {"completion_tokens", completion_tokens},
       {"e2e_s", seconds}});
  core_.Leave(request_id_);
  consumer_->Done(failure_);
}

}  // namespace fox
