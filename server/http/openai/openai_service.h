// The routes of OpenAI's API and of its usual neighbours: completions, chat, Anthropic's messages,
// models, health, version, and the tokenizer in vLLM's form. Read completion_format.h next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "server/calls/call.h"
#include "server/calls/server_core.h"
#include "server/http/openai/completion_format.h"
#include "server/http/port/http_routes.h"

namespace fox {

// `core` must outlive the port. `serving`: the answer of /health; called on the HTTP thread.
void RegisterOpenAiRoutes(ServerCore& core, std::function<bool()> serving, HttpRoutes* routes);

// Starts the call of an exchange, whose message has `bytes`. On the HTTP thread.
void StartCall(ServerCore& core, const char* path, Call::Work work, std::unique_ptr<Format> format,
               int64_t bytes, const std::shared_ptr<HttpExchange>& exchange);

// Adds the route of an API that answers prompts. `core` must outlive the port.
void RegisterApi(ServerCore& core, const HttpApi& api, HttpRoutes* routes);

// OpenAI's POST /v1/responses and /v1/responses/input_tokens. `core` must outlive the port.
void RegisterResponsesRoutes(ServerCore& core, HttpRoutes* routes);

// Anthropic's POST /v1/messages and /v1/messages/count_tokens. `core` must outlive the port.
void RegisterMessagesRoutes(ServerCore& core, HttpRoutes* routes);

// Adds a route whose answer is made of the body alone, in the queue of tokenizing. The call may be
// over before its answer is made, because the tokenizers' libraries cannot be interrupted.
using AnswerOfBody = std::function<absl::StatusOr<std::string>(const std::string& body,
                                                               const ConversionContext& context)>;
void RegisterTokenizing(ServerCore& core, const char* path, const AnswerOfBody& answer_of,
                        std::string (*error_body)(const absl::Status&), HttpRoutes* routes);

// GET /v1/cache, which lists the prefix cache, and DELETE, which empties it or one namespace, for
// administrators. `core` must outlive the port.
void RegisterCacheRoutes(ServerCore& core, HttpRoutes* routes);

// POST /tokenize and /detokenize and GET /tokenizer_info in vLLM's form, which evaluation programs
// use to count tokens. `core` must outlive the port.
void RegisterTokenizerRoutes(ServerCore& core, HttpRoutes* routes);

}  // namespace fox
