// Requests of OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses) as
// requests of a chat. Read responses_api.cc next, which writes the answers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/http/openai/completion_request.h"

namespace fox {

// Stands before a thought in base64: clients that send no other thoughts back, such as Codex, send
// this.
inline constexpr char kThoughtSeal[] = "fox1:";

// The body of POST /v1/responses or /v1/responses/input_tokens. Errors: as ParseCompletion's.
absl::StatusOr<CompletionRequest> ParseResponses(const std::string& body,
                                                 const ConversionContext& context);

}  // namespace fox
