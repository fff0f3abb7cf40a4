// CompletionCall: one POST /v1/completions or /v1/chat/completions: a Generation for each of its
// prompts, their events written as they come or merged into one answer. JSON is made on the lanes
// as events come: the one HTTP thread only writes it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/calls/generation.h"
#include "server/calls/reply_queue.h"
#include "server/calls/server_core.h"
#include "server/http/completion_request.h"
#include "server/http/completion_writer.h"
#include "server/http/http_exchange.h"

namespace fox {

// Lives until its answer is written and its generations have ended; it then gives back its shares
// of the budget.
class CompletionCall final : public HttpCall,
                             private ReplyQueue,
                             public std::enable_shared_from_this<CompletionCall> {
 public:
  // On the HTTP thread. Every end is told to the exchange.
  static void Start(ServerCore& core, bool chat, const std::shared_ptr<HttpExchange>& exchange);
  CompletionCall(ServerCore& core, bool chat, std::shared_ptr<HttpExchange> exchange,
                 CallInfo info);

  void OnWritten() override { Written(); }
  void OnSilence() override;
  void OnClosed(const absl::Status& reason) override { Close(reason); }

 private:
  // In the call's one turn on the admission pool.
  void Run();
  absl::Status Parse();
  absl::Status AdmitPrompts();
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t prompt);

  int64_t Keep(size_t prompt, v1::GenerateDelta event, RequestId sequence, int64_t tokens) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool empty() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pending_.empty() && windows_.empty() && !silent_;
  }
  Taken Take() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write() override;
  void End(const absl::Status& failed) override;
  void Abandon(const absl::Status&) override { exchange_->Abandon(); }
  HttpAnswer Answer();  // has the bytes

  ServerCore& core_;
  const bool chat_;
  const std::shared_ptr<HttpExchange> exchange_;
  CallInfo info_;  // its share is that of the last prompt
  // Written by Run, constant afterwards.
  CompletionRequest request_;
  std::string id_;
  std::vector<CallBudget::Share> shares_;  // of the other prompts

  std::optional<CompletionWriter> writer_ ABSL_GUARDED_BY(mutex_);
  std::string pending_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, std::string> windows_ ABSL_GUARDED_BY(mutex_);  // the newest, by choice
  Tokens pending_tokens_ ABSL_GUARDED_BY(mutex_);
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;  // a comment is due
  // Of the write in flight.
  std::string bytes_;
  bool begun_ = false;
};

}  // namespace fox
