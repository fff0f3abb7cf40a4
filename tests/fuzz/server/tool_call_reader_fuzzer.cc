// An answer split into text and calls: the result does not depend on how the answer is cut into
// pieces, each byte of it is in exactly one place, and calls are in order. The first byte chooses
// the format, the second the length of the pieces.
#include <string>
#include <vector>

#include "server/http/openai/tool_call_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

struct Answer {
  std::string content;
  std::vector<std::string> names, arguments;
  size_t calls = 0;
  bool operator==(const Answer&) const = default;
};

// Cuts the answer into pieces of `most` bytes; 0: the whole at once.
Answer ReadIn(const ToolFormat& format, const std::string& text, size_t most) {
  ToolCallReader reader(format);
  Answer answer;
  size_t at = 0;
  do {
    const std::string piece = text.substr(at, most == 0 ? text.size() : most);
    at += piece.size();
    std::vector<ToolCallPart> parts;
    reader.Read(piece, &answer.content, &parts);
    for (const ToolCallPart& part : parts) {
      const bool begins = !part.id.empty();
      FOX_CHECK(begins ? part.index == answer.names.size() : part.index + 1 == answer.names.size());
      if (begins) {
        answer.names.push_back(part.name);
        answer.arguments.emplace_back();
      }
      answer.arguments.back() += part.arguments;
    }
  } while (at < text.size());
  reader.EndText(/*cut=*/false, &answer.content);
  answer.calls = reader.calls();
  return answer;
}

}  // namespace

FUZZ_TEST(tool_call_reader) {
  ToolFormat formats[2];
  formats[0].call = "<tool_call>\n{\"name\": \"";
  formats[0].arguments = "\", \"arguments\": ";
  formats[0].call_end = "}\n</tool_call>";
  formats[0].separator = "\n";
  formats[1].call = "<c>";
  formats[1].arguments = ":";
  formats[1].call_end = "</c>";
  formats[1].separator = "<";
  const ToolFormat& format = formats[in.Below(2)];
  const size_t most = 1 + in.Below(9);
  const std::string text = in.Rest();
  const Answer answer = ReadIn(format, text, 0);
  FOX_CHECK(answer == ReadIn(format, text, most) && answer == ReadIn(format, text, 1));
  FOX_CHECK(answer.calls <= answer.names.size() && answer.names.size() <= answer.calls + 1);
  size_t bytes = answer.content.size();
  for (size_t i = 0; i < answer.names.size(); ++i) {
    bytes += format.call.size() + answer.names[i].size() + format.arguments.size() +
             answer.arguments[i].size();
    if (i < answer.calls) bytes += format.call_end.size();
  }
  FOX_CHECK(bytes <= text.size());
}

}  // namespace fox
