// CompletionRequest: the body of POST /v1/completions or /v1/chat/completions as requests of
// fox.v1, one for each prompt. Read completion_format.h next.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/http/openai/json_fields.h"

namespace fox {

struct CompletionRequest {
  v1::GenerateRequest settings;              // all fields but the prompt
  std::vector<v1::GenerateRequest> prompts;  // a prompt each, and nothing else
  bool chat = false;                         // the chat API: one prompt
  bool score = false;                        // max_tokens is 0: the prompts are scored
  // The client set max_tokens: the request is refused if the context cannot hold that many.
  bool max_tokens_sent = false;
  const char* max_tokens_field = "max_tokens";  // its name
  bool echo = false, stream = false, include_usage = false;
  bool continuous_usage = false;  // usage so far in each chunk, too
  std::string echoed;             // fields of the body that the answer repeats: `"a":1,"b":2`
  bool seals_thoughts = false;    // a thought comes also in a form that clients need not read
  // Of functions in a namespace: the name that the model sees, the namespace and their own.
  std::map<std::string, std::pair<std::string, std::string>> namespaced;
  int32_t n = 1;          // choices of a prompt
  int32_t logprobs = -1;  // alternatives; -1: none
};

inline constexpr size_t kMaxPrompts = 128;
inline constexpr size_t kMaxChoices = 128;  // prompts times n
static_assert(kMaxPrompts <= kMaxChoices);

// InvalidArgument names the field; NotFound: another model; FailedPrecondition: chat with a model
// that has no chat format. Values that fox.v1 has, too, are checked by Convert.
absl::StatusOr<CompletionRequest> ParseCompletion(const std::string& body,
                                                  const ConversionContext& context,
                                                  bool chat = false);

// True if a chat's usage says how many tokens its thoughts have.
bool CountsThoughts(const ConversionContext& context);

// Begins to read the body of another API for chats: `out`, new, gets the fields that all APIs have,
// and a prompt of no turns yet. Errors: as ParseCompletion's, and in the fields.
absl::StatusOr<JsonFields> BeginChat(const std::string& body, const ConversionContext& context,
                                     CompletionRequest* out);

// True if the request prescribes the form of the answer by something else than tools, for example
// by a schema.
bool HasGrammar(const v1::Sampling& sampling);

// One prompt, ready to run. Tokenizes.
absl::StatusOr<GenerationSpec> Convert(const CompletionRequest& request, size_t prompt,
                                       const ConversionContext& context);

}  // namespace fox
