// OpenAiService: the routes of OpenAI's API and of its usual neighbours: completions, chat, models,
// health, version, and the tokenizer in vLLM's form. Read completion_format.h next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "server/calls/call.h"
#include "server/calls/server_core.h"
#include "server/http/port/http_server.h"

namespace fox {

class OpenAiService {
 public:
  // `core` must outlive the service. `serving`: the answer of /health; called on any thread.
  OpenAiService(ServerCore& core, std::function<bool()> serving);

  // The service must outlive the server.
  void Register(HttpServer* server);

 private:
  ServerCore& core_;
  const std::function<bool()> serving_;
  const int64_t created_;  // seconds since 1970
};

// Starts the call of an exchange, whose message has `bytes`. On the HTTP thread.
void StartCall(ServerCore& core, const char* path, Call::Work work, std::unique_ptr<Format> format,
               int64_t bytes, const std::shared_ptr<HttpExchange>& exchange);

// POST /tokenize and /detokenize and GET /tokenizer_info in vLLM's form, which evaluation programs
// use to count tokens. `core` must outlive the server.
void RegisterTokenizerRoutes(ServerCore& core, HttpServer* server);

}  // namespace fox
