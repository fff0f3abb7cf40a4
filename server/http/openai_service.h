// OpenAiService: the routes of OpenAI's API and of what its servers offer beside it: completions,
// chat, models, health, version, and the tokenizer in vLLM's form. Read completion_call.h next.
#pragma once

#include <cstdint>
#include <functional>

#include "server/calls/server_core.h"
#include "server/http/http_server.h"

namespace fox {

class OpenAiService {
 public:
  // `core` must outlive the service. `serving`: what health says; any thread may ask.
  OpenAiService(ServerCore& core, std::function<bool()> serving);

  // The service must outlive the server.
  void Register(HttpServer* server);

 private:
  ServerCore& core_;
  const std::function<bool()> serving_;
  const int64_t created_;  // seconds since 1970
};

// POST /tokenize and /detokenize and GET /tokenizer_info in vLLM's form, which evaluation programs
// use to count tokens. `core` must outlive the server.
void RegisterTokenizerRoutes(ServerCore& core, HttpServer* server);

}  // namespace fox
