// Messages and tools of a body of /v1/chat/completions and /tokenize, as fox.v1 has them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fox/v1/inference.pb.h"
#include "models/tokenizer/chat_format.h"
#include "server/http/openai/json_fields.h"

namespace fox {

// The fields beside `messages`: add_generation_prompt, continue_final_message,
// chat_template_kwargs, reasoning_effort, tools, tool_choice and parallel_tool_calls. Errors go to
// `fields`.
void ReadTurn(JsonFields* fields, const ChatFormat& format, v1::ChatMessages* out);

// Reads `value`, the field `messages` of a body; null: it is absent. An answer of this server is
// taken back as it is, even a call that max_tokens has cut. InvalidArgument names the message.
absl::Status ReadMessages(const ExactJson* value, const ChatFormat& format, v1::ChatMessages* out);

// Puts thoughts that came apart where the template has them: in the answers behind the last
// question; templates drop those before it. `thoughts`: one of each turn; "": none.
void PlaceThoughts(const std::vector<std::string>& thoughts, const ChatFormat& format,
                   v1::ChatMessages* out);

// The arguments of a call as the model has seen them: JSON with the spaces of its template. A text
// that is no JSON, such as a call that was cut, stays as the model wrote it.
std::string SpacedArguments(const std::string& text);

// Reads an effort of reasoning, of the field `name`: "none" turns thoughts off, the others ask for
// them. Fails the field if the model's chat format cannot do so.
void ReadEffort(const char* name, JsonFields* fields, const ChatFormat& format,
                v1::ChatMessages* out);

}  // namespace fox
