// The rules of JSON values, and of property names other than the taken ones. See ebnf_rules.h.
#include "models/grammar/ebnf_rules.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/core/check.h"
#include "models/checkpoint/json_reader.h"
#include "models/grammar/json_pattern.h"
#include "models/grammar/work_meter.h"

namespace fox {
namespace {

constexpr char kComment[] = "  # ";
constexpr size_t kMaxNodes = 64;  // of a tree of names

// The characters of a name as JSON writes them between quotes; an escape counts as one.
std::vector<std::string> CharactersOf(const std::string& name) {
  const std::string json = ExactJson(name).dump();
  FOX_CHECK(json.size() >= 2 && json.front() == '"' && json.back() == '"');
  std::vector<std::string> out;
  for (size_t at = 1; at + 1 < json.size();) {
    size_t length = json[at] != '\\' ? 1 : json[at + 1] == 'u' ? 6 : 2;
    while ((json[at + length] & 0xc0) == 0x80) ++length;  // the rest of a UTF-8 character
    FOX_CHECK(at + length < json.size());
    out.push_back(json.substr(at, length));
    at += length;
  }
  return out;
}

// A tree of names, with a node for each character.
struct Node {
  bool is_name = false;
  std::map<std::string, Node> next;
};

Node TreeOf(const std::set<std::string>& names) {
  Node root;
  for (const std::string& name : names) {
    Node* node = &root;
    const std::vector<std::string> characters = CharactersOf(name);
    const size_t size = std::min(characters.size(), kMaxNodes);
    for (size_t i = 0; i < size; ++i) node = &node->next[characters[i]];
    node->is_name = true;
    SpendWork(static_cast<int64_t>(name.size()));
  }
  return root;
}

// The number of levels of the tree that have about kMaxNodes nodes together; all, if it is small.
size_t DepthOf(const Node& root) {
  std::vector<const Node*> level = {&root};
  size_t depth = 0;
  for (size_t nodes = 1; !level.empty() && nodes <= kMaxNodes; ++depth) {
    std::vector<const Node*> below;
    for (const Node* node : level) {
      for (const auto& [character, child] : node->next) below.push_back(&child);
    }
    level = std::move(below);
    nodes += level.size();
  }
  return depth;
}

// The class of characters that JSON does not escape, without the characters of `next`.
std::string OthersThan(const std::map<std::string, Node>& next) {
  std::string out = R"([^\x00-\x1f\x22\x5c)";
  for (const auto& [character, child] : next) {
    if (character.size() > 1 && character[0] == '\\') continue;  // an escape
    out += (character[0] & 0x80) != 0 ? character : absl::StrFormat("\\x%02x", character[0]);
  }
  return out + "]";
}

// The escapes of JSON behind their backslash, without the escapes in `next`.
std::string EscapesOtherThan(const std::map<std::string, Node>& next) {
  std::string letters;
  for (const char c : std::string("\"\\bfnrt")) {
    if (!next.contains({'\\', c})) absl::StrAppendFormat(&letters, "\\x%02x", c);
  }
  // One name with a \u escape excludes all of them.
  const auto coded = next.lower_bound("\\u");
  const bool none = coded == next.end() || !coded->first.starts_with("\\u");
  return absl::StrCat("([", letters, "]",
                      none ? " | \"u00\" (\"0\" [0-7bef] | \"1\" [0-9a-f])" : "", ")");
}

// The alternatives `ways`, and two for a character that no name has at this place. `rest`: the
// rule of the text behind such a character, with the closing quote.
std::string Ways(const std::map<std::string, Node>& next, std::vector<std::string> ways,
                 const std::string& rest) {
  ways.push_back(absl::StrCat(OthersThan(next), " ", rest));
  ways.push_back(absl::StrCat(R"("\\" )", EscapesOtherThan(next), " ", rest));
  return absl::StrCat("(", absl::StrJoin(ways, " | "), ") (= \":\")");
}

// The rule of a name's rest from `node` on, where names are told apart by `depth` more characters.
std::string RuleOf(const Node& node, size_t depth, const std::string& rest, EbnfRules* rules) {
  std::vector<std::string> ways;
  if (!node.is_name) ways.emplace_back(R"("\"")");
  if (depth > 1) {
    for (const auto& [character, child] : node.next) {
      ways.push_back(absl::StrCat(EbnfText(character), " ", RuleOf(child, depth - 1, rest, rules)));
    }
  }
  return rules->Add(Ways(node.next, std::move(ways), rest));
}

// The places of the rules of a text, by their names.
std::map<std::string, std::string> PlacesOf(const std::string& text) {
  std::map<std::string, std::string> out;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const size_t name = line.find(" ::= "), comment = line.rfind(kComment);
    if (name == line.npos || comment == line.npos) continue;
    out[line.substr(0, name)] = line.substr(comment + sizeof(kComment) - 1);
  }
  return out;
}

}  // namespace

std::string HeaviestPlace(const std::map<std::string, int64_t>& weights, const std::string& text) {
  const std::map<std::string, std::string> places = PlacesOf(text);
  std::map<std::string, int64_t> total;  // of a place with all places in it
  int64_t all = 0;
  for (const auto& [rule, weight] : weights) {
    all += weight;
    const auto found = places.find(rule.substr(0, rule.find_first_of("_#")));
    const std::string place = found == places.end() ? "" : found->second;
    for (size_t end = 0; end < place.size();) {
      end = std::min(place.find('/', end + 1), place.size());
      total[place.substr(0, end)] += weight;
    }
  }
  std::string heaviest;
  for (const auto& [place, weight] : total) {
    if (2 * weight > all && place.size() > heaviest.size()) heaviest = place;
  }
  return heaviest;
}

std::string EbnfText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string EbnfRules::Add(const std::string& body) {
  const auto [name, is_new] = names_.try_emplace(body);
  if (is_new) {
    name->second = Reserve();
    Define(name->second, body);
  }
  return name->second;
}

std::string EbnfRules::Reserve() { return absl::StrCat("r", count_++); }

void EbnfRules::Define(const std::string& name, const std::string& body) {
  SpendWork(static_cast<int64_t>(64 + body.size()));
  absl::StrAppend(&text_, name, " ::= ", body, kComment, absl::CHexEscape(place_.substr(0, 200)),
                  "\n");
}

std::string EbnfRules::Any() {
  if (!any_.empty()) return any_;
  any_ = Reserve();
  const std::string pair = absl::StrCat(Name({}), " \": \" ", any_);
  const std::string object =
      Add(absl::StrCat("\"{\" ", pair, " (\", \" ", pair, ")* \"}\" | \"{}\""));
  const std::string array =
      Add(absl::StrCat("\"[\" ", any_, " (\", \" ", any_, ")* \"]\" | \"[]\""));
  Define(any_, absl::StrJoin({Number(), String(), std::string("\"true\" | \"false\" | \"null\""),
                              array, object},
                             " | "));
  return any_;
}

std::string EbnfRules::String() {
  if (string_.empty()) {
    string_ = Reserve();
    Define(string_, absl::StrCat(R"(("\"" | )", JsonCharacter(), " ", string_, R"() (= [,}\]:]))"));
  }
  return absl::StrCat(R"("\"" )", string_);
}

std::string EbnfRules::Number() { return Add(JsonNumber()); }

std::string EbnfRules::Integer() { return Add(JsonInteger()); }

std::string EbnfRules::Name(const std::set<std::string>& taken) {
  if (name_.empty()) {
    name_ = Reserve();
    Define(name_, Ways({}, {R"("\"")"}, name_));
  }
  if (taken.empty()) return absl::StrCat(R"("\"" )", name_);
  const Node root = TreeOf(taken);
  return absl::StrCat(R"("\"" )", RuleOf(root, DepthOf(root), name_, this));
}

}  // namespace fox
