// CompletionCall: see completion_call.h.
#include "server/http/completion_call.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/http_error.h"
#include "server/http/windows_event.h"

namespace fox {

struct CompletionCall::Prompt final : GenerationConsumer {
  absl::Status Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override {
    return call->Deliver(index, event, sequence, tokens);
  }
  void Done(const absl::Status& status) override {
    const std::shared_ptr<CompletionCall> last = std::move(call);
    last->Done(index, status);
  }

  size_t index = 0;
  CallInfo info;
  std::shared_ptr<CompletionCall> call;  // from the start until Done
  // Under the call's lock.
  std::shared_ptr<Generation> generation;  // while it runs and is known
  bool done = false;
};

void CompletionCall::Start(ServerCore& core, const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request;
  CallInfo info = core.Describe(
      "/v1/completions", request.peer,
      [&](const std::string& name, int place) { return request.Header(name, place); });
  const absl::Status admitted = core.Admit(&info, static_cast<int64_t>(request.body.size()));
  if (!admitted.ok()) return exchange->Answer(ErrorAnswer(admitted, core.RetryAfterMs()));
  const uint64_t client = info.client;
  const int64_t bytes = info.share.bytes();
  auto call = std::make_shared<CompletionCall>(core, exchange, std::move(info));
  exchange->Attach(call);
  core.admission().Post(client, bytes, [call] { call->Parse(); });
}

CompletionCall::CompletionCall(ServerCore& core, std::shared_ptr<HttpExchange> exchange,
                               CallInfo info)
    : core_(core), exchange_(std::move(exchange)), info_(std::move(info)) {}

CompletionCall::~CompletionCall() = default;

void CompletionCall::Parse() {
  absl::StatusOr<CompletionRequest> request = absl::CancelledError("closed");
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
  }
  {
    const std::string body = std::exchange(exchange_->request.body, {});
    request = ParseCompletion(body, core_.context);
  }
  if (!request.ok()) return Fail(request.status());
  absl::StatusOr<std::string> id =
      CheckRequestId(std::string(exchange_->request.Header("x-request-id")));
  if (!id.ok()) return Fail(id.status());
  id_ = *std::move(id);
  request_ = *std::move(request);
  const absl::Status admitted = AdmitPrompts();
  if (!admitted.ok()) return Fail(admitted);
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    writer_.emplace(request_, core_.context, core_.description.Fingerprint(),
                    absl::StrCat("cmpl-", id_), std::time(nullptr));
    running_ = prompts_.size();
  }
  for (size_t i = 0; i < prompts_.size(); ++i) Run(i);
}

// The call's own share is the first prompt's; the others take theirs.
absl::Status CompletionCall::AdmitPrompts() {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    auto prompt = std::make_unique<Prompt>();
    prompt->index = i;
    CallInfo& info = prompt->info;
    info.method = info_.method;
    info.peer = info_.peer;
    info.client = info_.client;
    info.tenant = info_.tenant;
    info.deadline = info_.deadline;
    info.arrival = info_.arrival;
    info.trace = info_.trace;
    if (i == 0) {
      prompt->info.share = std::move(info_.share);
    } else {
      const auto bytes = static_cast<int64_t>(request_.prompts[i].ByteSizeLong());
      absl::Status admitted = core_.Admit(&prompt->info, bytes);
      if (!admitted.ok()) return admitted;
    }
    prompts_.push_back(std::move(prompt));
  }
  return absl::OkStatus();
}

void CompletionCall::Run(size_t index) {
  Prompt& prompt = *prompts_[index];
  prompt.call = shared_from_this();
  const auto convert = [self = shared_from_this(), index]() -> absl::StatusOr<GenerationSpec> {
    absl::StatusOr<GenerationSpec> spec = Convert(self->request_, index, self->core_.context);
    if (!spec.ok()) return spec.status();
    spec->request_id = self->prompts_.size() == 1 ? self->id_ : absl::StrCat(self->id_, "-", index);
    return spec;
  };
  // The turn in which the body was parsed is the first prompt's, too.
  std::shared_ptr<Generation> generation =
      Generation::Start(core_, prompt.info, convert, &prompt, /*has_turn=*/index == 0);
  std::optional<absl::Status> end;
  {
    const MutexLock lock(mutex_);
    if (!prompt.done) prompt.generation = generation;
    end = end_;
  }
  if (end.has_value()) generation->Cancel(*end);
}

void CompletionCall::Fail(const absl::Status& status) {
  exchange_->Answer(ErrorAnswer(status, core_.RetryAfterMs()));
}

absl::Status CompletionCall::Deliver(size_t prompt, const v1::GenerateDelta& event,
                                     RequestId sequence, int64_t tokens) {
  Action action;
  bool full = false, hangs = false;
  {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return *end_;
    const int64_t bytes = Take(prompt, event);
    if (request_.stream && tokens > 0) pending_tokens_.emplace_back(sequence, tokens);
    full = !Hold(bytes);
    hangs = full && writing_;
    if (!full) action = Next();
  }
  Perform(action);
  if (hangs) exchange_->Abandon();  // what it holds is needed now
  return full ? AnswersUnread() : absl::OkStatus();
}

int64_t CompletionCall::Take(size_t prompt, const v1::GenerateDelta& event) {
  if (event.has_windows()) {
    const size_t choice = prompt * static_cast<size_t>(request_.n) + event.windows().index();
    std::string& newest = windows_[choice];
    const auto before = static_cast<int64_t>(newest.size());
    newest = WindowsEvent(event.windows(), choice);
    return static_cast<int64_t>(newest.size()) - before;
  }
  const int64_t grown = writer_->Add(prompt, event);
  if (!request_.stream || event.has_prompt()) return grown;
  const std::string chunk = writer_->TakeChunk(prompt, event);
  pending_ += chunk;
  return static_cast<int64_t>(chunk.size());
}

void CompletionCall::Done(size_t prompt, const absl::Status& status) {
  Action action;
  std::vector<std::shared_ptr<Generation>> cancelled;
  {
    const MutexLock lock(mutex_);
    prompts_[prompt]->generation = nullptr;
    prompts_[prompt]->done = true;
    --running_;
    if (!status.ok()) cancelled = Cancel(status);
    action = Next();
  }
  for (const auto& generation : cancelled) generation->Cancel(status);
  Perform(action);
}

void CompletionCall::OnWritten() {
  Action action;
  Tokens written;
  {
    const MutexLock lock(mutex_);
    writing_ = false;
    Hold(-std::exchange(writing_bytes_, 0));
    written = std::exchange(writing_tokens_, {});
    action = Next();
  }
  for (const auto& [sequence, tokens] : written) core_.engine.Acknowledge(sequence, tokens);
  Perform(action);
}

void CompletionCall::OnClosed(const absl::Status& reason) {
  std::vector<std::shared_ptr<Generation>> cancelled;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    cancelled = Cancel(reason);
  }
  for (const auto& generation : cancelled) generation->Cancel(reason);
}

CompletionCall::Action CompletionCall::Next() {
  if (closed_ || ended_ || writing_) return nullptr;
  if (running_ == 0 && (begun_ || !request_.stream || end_.has_value())) return Last();
  if ((pending_.empty() && windows_.empty()) || end_.has_value()) return nullptr;
  std::string bytes = TakePending();
  writing_ = true;
  writing_bytes_ = static_cast<int64_t>(bytes.size());
  writing_tokens_ = std::exchange(pending_tokens_, {});
  if (std::exchange(begun_, true)) {
    return [this, bytes = std::move(bytes)]() mutable { exchange_->Write(std::move(bytes)); };
  }
  HttpAnswer head;
  head.content_type = "text/event-stream";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Request-Id", id_}};
  head.body = std::move(bytes);
  return [this, head = std::move(head)]() mutable { exchange_->BeginStream(std::move(head)); };
}

std::string CompletionCall::TakePending() {
  std::string bytes;
  for (const auto& [choice, event] : windows_) bytes += event;
  windows_.clear();
  return bytes + std::exchange(pending_, {});  // the end of the last choice comes last
}

CompletionCall::Action CompletionCall::Last() {
  ended_ = true;
  if (begun_) {
    std::string rest = TakePending();
    rest += end_.has_value() ? absl::StrCat("data: ", ErrorBody(*end_), "\n\ndata: [DONE]\n\n")
                             : writer_->LastChunks();
    return [this, rest = std::move(rest)]() mutable { exchange_->End(std::move(rest)); };
  }
  HttpAnswer answer;
  if (!end_.has_value()) {
    answer.headers = {{"X-Request-Id", id_}};
    answer.body = writer_->TakeBody();
    if (!Hold(static_cast<int64_t>(answer.body.size()) - held_)) end_ = AnswersUnread();
  }
  if (end_.has_value()) answer = ErrorAnswer(*end_, core_.RetryAfterMs());
  return [this, answer = std::move(answer)]() mutable { exchange_->Answer(std::move(answer)); };
}

std::vector<std::shared_ptr<Generation>> CompletionCall::Cancel(const absl::Status& reason) {
  std::vector<std::shared_ptr<Generation>> out;
  if (end_.has_value()) return out;
  end_ = reason;
  for (const std::unique_ptr<Prompt>& prompt : prompts_) {
    if (prompt->generation != nullptr) out.push_back(prompt->generation);
  }
  return out;
}

bool CompletionCall::Hold(int64_t bytes) {
  if (!prompts_.front()->info.share.Hold(bytes)) return false;
  held_ += bytes;
  return true;
}

}  // namespace fox
