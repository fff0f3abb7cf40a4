// Messages and tools of a body of /v1/chat/completions and /tokenize, as fox.v1 has them.
#pragma once

#include <map>
#include <optional>
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

// Stands in a tool's answer for an image or a file. Such an answer, once given, is in all later
// requests of an agent, so refusing it would end the conversation.
inline constexpr char kUnseenPart[] = "(an image or a file, which this model cannot see)";

// What an API says of a turn and fox.v1 does not.
struct TurnNotes {
  std::string thought;
  std::vector<std::string> calls;  // their ids
  std::string answered;            // the id of the call that a tool answers; "": it is not said
};

// The turns of a chat as other APIs write them: in blocks or items, of which several make a turn.
class ChatTurns {
 public:
  // `format` must outlive it.
  ChatTurns(const ChatFormat& format, v1::ChatMessages* out) : format_(format), out_(*out) {}

  // The last turn, or a new one: those of one side that follow each other are one, but for answers
  // of tools.
  v1::ChatMessage& Turn(const std::string& role);
  // A line of the turn that `role` has now. Agents speak as the system in the middle of a
  // conversation: where the template has no place for that, the line is the user's.
  void AddLine(const std::string& role, const std::string& line);
  // A line of the assistant's thought.
  void AddThought(const std::string& line);
  // A call of the assistant, and the answer of a tool to the call `id`, whose text is returned.
  void AddCall(const std::string& id, const std::string& name, const std::string& arguments);
  std::string* AddAnswer(const std::string& id);
  // All turns are there: puts thoughts and answers where the template has them.
  void Finish();

 private:
  TurnNotes& Notes();  // of the last turn

  const ChatFormat& format_;
  v1::ChatMessages& out_;
  std::vector<TurnNotes> notes_;  // of the turns so far
};

// Which functions of a request the model may call: "none", "auto", "required", one by its name, or
// {"type": "allowed_tools", "mode": .., "tools": [..]}.
class ToolChoice {
 public:
  // Reads the field `tool_choice`. `nested`: names of functions and allowed tools stand in an
  // object below their type, as in chats, or beside it.
  ToolChoice(JsonFields* fields, bool nested, v1::ChatMessages* out);

  bool none() const { return none_; }
  // True if the model sees the function of an entry of `tools`.
  bool Admits(const ExactJson& tool);
  // Fails the field if it names a tool that Admits has not seen, so call it after the last tool.
  void CheckNames(JsonFields* fields) const;

 private:
  const bool nested_;
  bool none_ = false;
  std::optional<std::map<std::string, bool>> allowed_;  // true: was found. Not set: all
};

// Joins texts as lines.
void JoinLine(const std::string& line, std::string* text);

// The arguments of a call as the model has seen them: JSON with the spaces of its template. A text
// that is no JSON, such as a call that was cut, stays as the model wrote it.
std::string SpacedArguments(const std::string& text);

// Reads an effort of reasoning, of the field `name`: "none" turns thoughts off, the others ask for
// them. Fails the field if the model's chat format cannot do so.
void ReadEffort(const char* name, JsonFields* fields, const ChatFormat& format,
                v1::ChatMessages* out);

}  // namespace fox
