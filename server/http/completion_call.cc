// CompletionCall: see completion_call.h.
#include "server/http/completion_call.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/http_error.h"

namespace fox {

void CompletionCall::Start(ServerCore& core, bool chat,
                           const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request;
  CallInfo info = core.Describe(
      chat ? "/v1/chat/completions" : "/v1/completions", request.peer,
      [&](const std::string& name, int place) { return request.Header(name, place); });
  const absl::Status admitted = core.Admit(&info, static_cast<int64_t>(request.body.size()));
  if (!admitted.ok()) return exchange->Answer(ErrorAnswer(admitted, core.RetryAfterMs()));
  const uint64_t client = info.client;
  const int64_t bytes = info.share.bytes();
  auto call = std::make_shared<CompletionCall>(core, chat, exchange, std::move(info));
  exchange->Attach(call);
  core.admission().Post(client, bytes, [call] { call->Run(); });
}

CompletionCall::CompletionCall(ServerCore& core, bool chat, std::shared_ptr<HttpExchange> exchange,
                               CallInfo info)
    : ReplyQueue(core.engine),
      core_(core),
      chat_(chat),
      exchange_(std::move(exchange)),
      info_(std::move(info)) {}

void CompletionCall::Run() {
  absl::Status status = failure();  // the client may have left
  if (status.ok()) status = Parse();
  if (status.ok()) status = AdmitPrompts();
  if (status.ok()) status = failure();
  if (!status.ok()) return exchange_->Answer(ErrorAnswer(status, core_.RetryAfterMs()));
  const size_t prompts = request_.prompts.size();
  {
    const MutexLock lock(mutex_);
    writer_.emplace(request_, core_.context, core_.description.Fingerprint(),
                    absl::StrCat(chat_ ? "chatcmpl-" : "cmpl-", id_), std::time(nullptr));
  }
  Expect(prompts, request_.stream, &info_.share);
  const std::shared_ptr<GenerationConsumer> self(shared_from_this(), this);
  for (size_t i = 0; i < prompts; ++i) {
    Attach(Generation::StartConverted(core_, info_, ConvertPrompt(i), self));
  }
}

absl::Status CompletionCall::Parse() {
  const std::string body = std::exchange(exchange_->request.body, {});
  absl::StatusOr<CompletionRequest> request = ParseCompletion(body, core_.context, chat_);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  absl::StatusOr<std::string> id =
      CheckRequestId(std::string(exchange_->request.Header("x-request-id")));
  if (!id.ok()) return id.status();
  id_ = *std::move(id);
  return absl::OkStatus();
}

// The share that the call came with is that of one prompt; the others take theirs.
absl::Status CompletionCall::AdmitPrompts() {
  const MutexLock lock(mutex_);
  absl::Status admitted;
  for (size_t i = 1; i < request_.prompts.size() && admitted.ok(); ++i) {
    shares_.push_back(std::move(info_.share));
    admitted = core_.Admit(&info_, static_cast<int64_t>(request_.prompts[i].ByteSizeLong()));
  }
  return admitted;
}

absl::StatusOr<GenerationSpec> CompletionCall::ConvertPrompt(size_t prompt) {
  if (absl::Status failed = failure(); !failed.ok()) return failed;
  absl::StatusOr<GenerationSpec> spec = Convert(request_, prompt, core_.context);
  if (!spec.ok()) return spec.status();
  spec->prompt = prompt;
  spec->request_id = request_.prompts.size() == 1 ? id_ : absl::StrCat(id_, "-", prompt);
  return spec;
}

int64_t CompletionCall::Keep(size_t prompt, v1::GenerateDelta event, RequestId sequence,
                             int64_t tokens) {
  if (request_.stream && tokens > 0) pending_tokens_.emplace_back(sequence, tokens);
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

ReplyQueue::Taken CompletionCall::Take() {
  if (!request_.stream) {
    bytes_ = writer_->TakeBody();
    return {{}, kept(), static_cast<int64_t>(bytes_.size())};
  }
  bytes_.clear();
  for (const auto& [choice, event] : windows_) bytes_ += event;
  windows_.clear();
  bytes_ += std::exchange(pending_, {});  // the end of the last choice comes last
  const auto size = static_cast<int64_t>(bytes_.size());
  if (std::exchange(silent_, false) && bytes_.empty()) bytes_ = ": waiting\n\n";
  if (all_done()) bytes_ += writer_->LastChunks();
  return {std::exchange(pending_tokens_, {}), size, size};
}

void CompletionCall::Drop() {
  pending_.clear();
  windows_.clear();
  silent_ = false;
  writer_.reset();
}

// A stream begins with it, if need be: proxies close connections that are silent for a minute. What
// fails afterwards is an event.
void CompletionCall::OnSilence() {
  {
    const MutexLock lock(mutex_);
    silent_ = writer_.has_value() && request_.stream;
    if (!silent_) return;
  }
  Wake();
}

void CompletionCall::Write() {
  if (std::exchange(begun_, true)) return exchange_->Write(std::move(bytes_));
  exchange_->BeginStream(Answer());
}

void CompletionCall::End(const absl::Status& failed) {
  if (!begun_) {
    return exchange_->Answer(failed.ok() ? Answer() : ErrorAnswer(failed, core_.RetryAfterMs()));
  }
  if (!failed.ok()) bytes_ = absl::StrCat("data: ", ErrorBody(failed), "\n\ndata: [DONE]\n\n");
  exchange_->End(std::move(bytes_));
}

HttpAnswer CompletionCall::Answer() {
  HttpAnswer answer;
  answer.headers = {{"X-Request-Id", id_}};
  if (request_.stream) {
    answer.content_type = "text/event-stream";
    answer.headers.emplace_back("Cache-Control", "no-cache");
  }
  answer.body = std::move(bytes_);
  return answer;
}

}  // namespace fox
