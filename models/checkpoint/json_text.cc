// One walk over the text of a JSON document: see json_text.h.
#include "models/checkpoint/json_text.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool IsPunctuation(char c) { return absl::StrContains("{}[],:", c); }

// Takes the next token off the front of `json`: punctuation, a string with its quotes, a number or
// a word. Empty: there is none.
absl::string_view TakeToken(absl::string_view* json) {
  absl::ConsumePrefix(json, "\xef\xbb\xbf");  // ReadJson skips it
  while (!json->empty() && IsSpace(json->front())) json->remove_prefix(1);
  size_t size = json->empty() ? 0 : 1;
  if (size > 0 && json->front() == '"') {
    while (size < json->size() && (*json)[size] != '"') size += (*json)[size] == '\\' ? 2 : 1;
    ++size;
  } else if (size > 0 && !IsPunctuation(json->front())) {
    while (size < json->size() && !IsSpace((*json)[size]) && !IsPunctuation((*json)[size])) ++size;
  }
  const absl::string_view token = json->substr(0, size);
  json->remove_prefix(token.size());
  return token;
}

// Takes the next value off the front of `json`.
absl::string_view TakeValue(absl::string_view* json) {
  absl::string_view rest = *json;
  int depth = 0;
  const char* begin = nullptr;
  do {
    const absl::string_view token = TakeToken(&rest);
    if (token.empty()) break;
    if (begin == nullptr) begin = token.data();
    if (token == "{" || token == "[") ++depth;
    if (token == "}" || token == "]") --depth;
  } while (depth > 0);
  *json = rest;
  return begin == nullptr ? absl::string_view()
                          : absl::string_view(begin, static_cast<size_t>(rest.data() - begin));
}

// The text of a string's token, without quotes and escapes.
std::string Unquoted(absl::string_view token) {
  if (!absl::StrContains(token, '\\')) return std::string(token.substr(1, token.size() - 2));
  return nlohmann::json::parse(token).get<std::string>();
}

absl::string_view MemberOf(absl::string_view object, absl::string_view name) {
  if (TakeToken(&object) != "{") return {};
  absl::string_view key = TakeToken(&object);
  while (key.size() > 1) {  // no bracket
    TakeToken(&object);     // the colon
    const absl::string_view value = TakeValue(&object);
    if (Unquoted(key) == name) return value;
    if (TakeToken(&object) != ",") break;
    key = TakeToken(&object);
  }
  return {};
}

}  // namespace

absl::string_view JsonAt(absl::string_view json, std::initializer_list<absl::string_view> path) {
  for (const absl::string_view name : path) json = MemberOf(json, name);
  return json;
}

std::vector<absl::string_view> JsonElements(absl::string_view json) {
  std::vector<absl::string_view> out;
  if (TakeToken(&json) != "[") return out;
  while (true) {
    const absl::string_view value = TakeValue(&json);
    if (value.empty() || value == "]") return out;
    out.push_back(value);
    if (TakeToken(&json) != ",") return out;
  }
}

std::string Respaced(absl::string_view json, JsonSpacing spacing) {
  std::string out;
  out.reserve(json.size());
  for (absl::string_view token = TakeToken(&json); !token.empty(); token = TakeToken(&json)) {
    if (token.front() == '"' && absl::StrContains(token, '\\')) {
      out += nlohmann::json::parse(token).dump();
      continue;
    }
    out.append(token.data(), token.size());
    if (spacing == JsonSpacing::kPython && (token == "," || token == ":")) out += ' ';
  }
  return out;
}

}  // namespace fox
