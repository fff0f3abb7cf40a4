// A file of bearer tokens: each line is a token or a remark. All tokens are found, as different
// clients, and nothing else is. A refusal never shows the content of the file.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/calls/access/token_set.h"
#include "server/process/log.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/model_folder.h"

namespace fox {
namespace {

bool IsToken(const std::string& line) {
  return line.size() >= TokenSet::kMinTokenBytes && line.size() <= TokenSet::kMaxTokenBytes &&
         std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

FUZZ_TEST(token_set) {
  static ModelFolder folder;
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  const std::string text = in.Rest();
  folder.Write("tokens", text);
  std::set<std::string> tokens;
  bool is_right = true;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    constexpr char kSpaces[] = " \t\n\v\f\r";
    std::string line = text.substr(at, end - at);
    line.erase(line.find_last_not_of(kSpaces) + 1);
    line.erase(0, line.find_first_not_of(kSpaces));
    if (line.empty() || line[0] == '#') continue;
    is_right &= IsToken(line);
    tokens.insert(line);
  }
  const auto set = TokenSet::Load(folder.path() + "/tokens");
  if (!set.ok()) {
    FOX_CHECK(!is_right || tokens.empty() || tokens.size() > TokenSet::kMaxTokens);
    FOX_CHECK(set.status().message().size() <= 1024);
    for (const std::string& token : tokens) {
      FOX_CHECK(token.size() < TokenSet::kMinTokenBytes ||
                !absl::StrContains(set.status().message(), token));
    }
    return;
  }
  FOX_CHECK(is_right && !tokens.empty());
  std::set<uint64_t> clients;
  size_t left = 16;  // a search takes time in proportion to the tokens
  for (const std::string& token : tokens) {
    if (left-- == 0) break;
    const auto client = (*set)->Find(token);
    FOX_CHECK(client.has_value() && clients.insert(*client).second);
    const std::string longer = token + "a", shorter = token.substr(1);
    FOX_CHECK(tokens.count(longer) > 0 || !(*set)->Find(longer).has_value());
    FOX_CHECK(tokens.count(shorter) > 0 || !(*set)->Find(shorter).has_value());
  }
}

}  // namespace fox
