// An answer split into a thought, text and calls: the result does not depend on how the answer is
// cut into pieces, each byte of it is in at most one place, and calls are in order. The first byte
// chooses the form, the second the length of the pieces.
#include <string>
#include <vector>

#include "server/http/openai/answer_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

struct Answer {
  std::string thought, content;
  std::vector<std::string> names, arguments;
  size_t calls = 0;
  bool operator==(const Answer&) const = default;

  void Add(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      if (part.kind == AnswerPart::Kind::kThought) {
        FOX_CHECK(content.empty() && names.empty());
        thought += part.text;
      } else if (part.kind == AnswerPart::Kind::kText) {
        content += part.text;
      } else {
        const bool begins = !part.id.empty();
        FOX_CHECK(begins ? part.call == names.size() : part.call + 1 == names.size());
        if (begins) {
          names.push_back(part.name);
          arguments.emplace_back();
        }
        arguments.back() += part.text;
      }
    }
  }
};

// Cuts the answer into pieces of `most` bytes; 0: the whole at once.
Answer ReadIn(const AnswerForm& form, const std::string& text, size_t most) {
  AnswerReader reader(form);
  Answer answer;
  size_t at = 0;
  std::vector<AnswerPart> parts;
  do {
    const std::string piece = text.substr(at, most == 0 ? text.size() : most);
    at += piece.size();
    parts.clear();
    reader.Read(piece, &parts);
    answer.Add(parts);
  } while (at < text.size());
  parts.clear();
  reader.EndText(/*cut=*/false, &parts);
  answer.Add(parts);
  answer.calls = reader.calls();
  return answer;
}

}  // namespace

FUZZ_TEST(answer_reader) {
  ToolFormat formats[2];
  formats[0].call = "<tool_call>\n{\"name\": \"";
  formats[0].arguments = "\", \"arguments\": ";
  formats[0].call_end = "}\n</tool_call>";
  formats[0].separator = "\n";
  formats[0].trigger = "<tool_call>";
  formats[1].call = "<c>";
  formats[1].arguments = ":";
  formats[1].call_end = "</c>";
  formats[1].separator = "<";
  formats[1].trigger = "<c>";
  ThinkingFormat thinking;
  thinking.start = "<think>";
  thinking.end = "</think>";
  const size_t choice = in.Below(8);
  const ToolFormat& tools = formats[choice % 2];
  AnswerForm form;
  form.tools = &tools;
  if (choice >= 2) form.thinking = &thinking;
  form.begins_in_thought = choice >= 4;
  const size_t most = 1 + in.Below(9);
  const std::string text = in.Rest();
  const Answer answer = ReadIn(form, text, 0);
  FOX_CHECK(answer == ReadIn(form, text, most) && answer == ReadIn(form, text, 1));
  FOX_CHECK(answer.calls <= answer.names.size() && answer.names.size() <= answer.calls + 1);
  FOX_CHECK(choice >= 2 || answer.thought.empty());
  size_t bytes = answer.thought.size() + answer.content.size();
  for (size_t i = 0; i < answer.names.size(); ++i) {
    bytes += tools.call.size() + answer.names[i].size() + tools.arguments.size() +
             answer.arguments[i].size();
    if (i < answer.calls) bytes += tools.call_end.size();
  }
  FOX_CHECK(bytes <= text.size());
}

}  // namespace fox
