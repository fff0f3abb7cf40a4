// CompletionCall: one POST /v1/completions: a Generation for each of its prompts, their events
// written as they come or merged into one answer. Tokens are acknowledged to the engine when the
// connection has taken their bytes, so a reader that stops reading pauses its own sequences. JSON
// is made on the lanes as events come: the one HTTP thread only writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/mutex.h"
#include "server/calls/generation.h"
#include "server/calls/server_core.h"
#include "server/http/completion_request.h"
#include "server/http/completion_writer.h"
#include "server/http/http_exchange.h"

namespace fox {

// Lives until its answer is written and its generations have ended; it then gives back its shares
// of the budget.
class CompletionCall final : public HttpCall, public std::enable_shared_from_this<CompletionCall> {
 public:
  // On the HTTP thread. Every end is told to the exchange.
  static void Start(ServerCore& core, const std::shared_ptr<HttpExchange>& exchange);
  CompletionCall(ServerCore& core, std::shared_ptr<HttpExchange> exchange, CallInfo info);
  ~CompletionCall() override;

  void OnWritten() override;
  void OnClosed(const absl::Status& reason) override;

 private:
  struct Prompt;  // one of them and its generation
  // What to tell the exchange: chosen under the lock and done without it. Null: nothing now.
  using Action = std::function<void()>;

  void Parse();  // on the admission pool
  absl::Status AdmitPrompts();
  void Run(size_t index);
  void Fail(const absl::Status& status);

  // On the lane of a prompt.
  absl::Status Deliver(size_t prompt, const v1::GenerateDelta& event, RequestId sequence,
                       int64_t tokens);
  void Done(size_t prompt, const absl::Status& status);
  // Takes an event; returns the bytes by which what is held has grown.
  int64_t Take(size_t prompt, const v1::GenerateDelta& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action Last() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string TakePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Perform(const Action& action) {
    if (action) action();
  }
  // The generations to be cancelled for the first reason there is.
  std::vector<std::shared_ptr<Generation>> Cancel(const absl::Status& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the first prompt's share, for what waits to be written; less than 0: gives back.
  bool Hold(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServerCore& core_;
  const std::shared_ptr<HttpExchange> exchange_;
  // Written by Parse, constant afterwards.
  CompletionRequest request_;
  std::string id_;
  std::vector<std::unique_ptr<Prompt>> prompts_;

  Mutex mutex_;
  CallInfo info_ ABSL_GUARDED_BY(mutex_);  // until prompts_ have theirs
  std::optional<CompletionWriter> writer_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;               // prompts that have not ended
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // why all were cancelled
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;              // the client reads no more
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  using Tokens = std::vector<std::pair<RequestId, int64_t>>;
  std::string pending_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, std::string> windows_ ABSL_GUARDED_BY(mutex_);  // the newest, by choice
  Tokens pending_tokens_ ABSL_GUARDED_BY(mutex_), writing_tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fox
