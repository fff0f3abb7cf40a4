// A file of bearer tokens: exactly the lines that are tokens are in the set, and no error reveals
// the file's contents.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/calls/token_set.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/model_folder.h"

namespace fox {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back().push_back(c);
    }
  }
  lines.pop_back();  // a line ends with a newline
  for (std::string& line : lines) {
    while (!line.empty() && IsSpace(line.back())) line.pop_back();
    while (!line.empty() && IsSpace(line.front())) line.erase(0, 1);
  }
  return lines;
}

// A message reveals only the number of the line.
void CheckMessage(absl::string_view message) {
  std::string words;
  for (const char c : message) {
    if (c >= '0' && c <= '9') continue;
    words.push_back(c);
  }
  FOX_CHECK(words == "holds no token: each is a line, up to its newline" ||
            words == "line : a token has  to  visible ASCII characters");
}

}  // namespace

void Fuzz(FuzzInput in) {
  const std::string text = in.Rest();
  static ModelFolder folder;
  folder.Write("tokens", text);
  const auto set = TokenSet::Load(folder.path() + "/tokens");
  std::set<std::string> tokens;
  bool right = true;
  for (const std::string& line : Lines(text)) {
    if (line.empty() || line[0] == '#') continue;
    tokens.insert(line);
    right = right && line.size() >= 8 && line.size() <= 1024;
    for (const char c : line) right = right && c > ' ' && c < '\x7F';
  }
  FOX_CHECK(set.ok() == (right && !tokens.empty()));
  if (!set.ok()) return CheckMessage(set.status().message());
  std::set<uint64_t> clients;
  for (const std::string& token : tokens) {
    const auto client = (*set)->Find(token);
    FOX_CHECK(client.has_value() && clients.insert(*client).second);
    FOX_CHECK(tokens.count(token + "x") != 0 || !(*set)->Find(token + "x").has_value());
    const std::string shorter = token.substr(0, token.size() - 1);
    FOX_CHECK(tokens.count(shorter) != 0 || !(*set)->Find(shorter).has_value());
  }
}

}  // namespace fox
