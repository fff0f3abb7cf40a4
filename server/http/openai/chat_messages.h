// Messages and tools of a body of /v1/chat/completions and /tokenize, as fox.v1 has them.
#pragma once

#include "absl/status/status.h"
#include "fox/v1/inference.pb.h"
#include "models/tokenizer/chat_format.h"
#include "server/http/openai/json_fields.h"

namespace fox {

// The fields beside `messages`: add_generation_prompt, continue_final_message,
// chat_template_kwargs, tools, tool_choice and parallel_tool_calls. Errors go to `fields`.
void ReadTurn(JsonFields* fields, v1::ChatMessages* out);

// Reads `value`, the field `messages` of a body; null: it is absent. An answer of this server is
// taken back as it is, even a call that max_tokens has cut. InvalidArgument names the message.
absl::Status ReadMessages(const ExactJson* value, const ChatFormat& format, v1::ChatMessages* out);

}  // namespace fox
