// Tokenizer routes: POST /tokenize and /detokenize and GET /tokenizer_info in vLLM's form, which
// evaluation programs use to count tokens.
#pragma once

#include "server/calls/server_core.h"
#include "server/http/http_server.h"

namespace fox {

// `core` must outlive the server.
void RegisterTokenizerRoutes(ServerCore& core, HttpServer* server);

}  // namespace fox
