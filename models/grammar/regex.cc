// A tree of sets of characters and groups, and the rule that it becomes. See regex.h.
#include "models/grammar/regex.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/grammar/ebnf_rules.h"
#include "models/grammar/json_pattern.h"
#include "models/grammar/utf8_ranges.h"
#include "models/grammar/work_meter.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

const CodePoints kAll = {{0, kLastCodePoint}};
const CodePoints kDigits = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpaces = {{'\t', '\r'}, {' ', ' '}};
// The spaces of ECMAScript and of Python together: the complement of `\S`.
const CodePoints kAnySpaces = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},
                               {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                               {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                               {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CodePoints kSurrogates = {{0xd800, 0xdfff}};
const CodePoints kEscaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};  // by JSON
// Pairs: the letter of an escape, its meaning.
constexpr char kLetters[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
static_assert(sizeof(kLetters) % 2 == 1, "pairs, and a NUL");

constexpr int kNoEnd = -1;
constexpr int kMaxRepeats = 1 << 20;

[[noreturn]] void Fail(const std::string& problem) { throw std::runtime_error(problem); }

CodePoints Intersection(const CodePoints& a, const CodePoints& b) {
  CodePoints out = Complement(a);
  const CodePoints others = Complement(b);
  out.insert(out.end(), others.begin(), others.end());
  return Complement(out);
}

bool Has(const CodePoints& set, int32_t point) {
  return std::any_of(set.begin(), set.end(), [point](const auto& range) {
    return range.first <= point && point <= range.second;
  });
}

// --- Reading ---

struct Node;
using Sequence = std::vector<Node>;

struct Node {
  enum class Kind { kSet, kGroup, kBegin, kEnd };
  Kind kind = Kind::kSet;
  CodePoints set = {};
  std::vector<Sequence> ways = {};  // of a group
  int least = 1, most = 1;
  bool has_anchor = false;  // is ^ or $, or holds one
};

class Reader {
 public:
  explicit Reader(const std::string& regex) : regex_(regex) {}

  Node Read() {
    Node all = ReadWays();
    if (!AtEnd()) Fail("a ) without its (");
    return all;
  }

 private:
  bool AtEnd() const { return at_ >= regex_.size(); }
  bool IsNext(const std::string& text) const { return regex_.compare(at_, text.size(), text) == 0; }
  bool Take(const std::string& text) {
    const bool is_next = IsNext(text);
    if (is_next) at_ += text.size();
    return is_next;
  }
  char Next() {
    if (AtEnd()) Fail("it ends early");
    return regex_[at_++];
  }
  int32_t NextPoint() {
    if (AtEnd()) Fail("it ends early");
    const Utf8Unit unit = NextUtf8(regex_.data() + at_, regex_.size() - at_);
    at_ += unit.length;
    return static_cast<int32_t>(unit.code_point);
  }

  // Alternatives up to a ) or to the end.
  Node ReadWays() {
    Node group{Node::Kind::kGroup};
    group.ways.emplace_back();
    while (!AtEnd() && !IsNext(")")) {
      SpendWork(64);
      if (Take("|")) {
        group.ways.emplace_back();
        continue;
      }
      Node term = ReadTerm();
      group.has_anchor |= term.has_anchor;
      group.ways.back().push_back(std::move(term));
    }
    return group;
  }

  Node ReadTerm() {
    if (Take("^")) return {.kind = Node::Kind::kBegin, .has_anchor = true};
    if (Take("$")) return {.kind = Node::Kind::kEnd, .has_anchor = true};
    if (IsNext("*") || IsNext("+") || IsNext("?") || IsRepetition()) Fail("nothing to repeat");
    Node term;
    if (Take("(")) {
      if (Take("?") && !Take(":")) SkipName();
      term = ReadWays();
      if (!Take(")")) Fail("a ( without its )");
    } else if (Take("[")) {
      term.set = ReadClass();
    } else if (Take(".")) {
      term.set = Complement(kLineEnds);
    } else if (Take("\\")) {
      term.set = Escape(/*in_class=*/false);
    } else {
      const int32_t point = NextPoint();
      term.set = {{point, point}};
    }
    ReadRepetition(&term);
    return term;
  }

  // The name of a group, as (?<year>..) or, in Python, (?P<year>..).
  void SkipName() {
    Take("P");
    if (!Take("<") || IsNext("=") || IsNext("!")) {
      Fail("look-around and flags are not supported");
    }
    while (absl::ascii_isalnum(static_cast<unsigned char>(Next())) || regex_[at_ - 1] == '_') {
    }
    if (regex_[at_ - 1] != '>') Fail("the name of a group has letters, digits and _");
  }

  // True if {n}, {n,} or {n,m} is next. Any other { is a character.
  bool IsRepetition() const {
    if (!IsNext("{")) return false;
    const size_t end = regex_.find('}', at_);
    const std::string inside =
        end == regex_.npos ? "" : regex_.substr(at_ + 1, std::min<size_t>(end - at_ - 1, 32));
    if (absl::StartsWith(inside, ",")) Fail("{,n} means {0,n} to some readers and text to others");
    return !inside.empty() && inside.find_first_not_of("0123456789,") == inside.npos &&
           std::count(inside.begin(), inside.end(), ',') <= 1;
  }
  int Count() {
    int64_t count = 0;
    while (absl::ascii_isdigit(static_cast<unsigned char>(regex_[at_]))) {
      count = std::min<int64_t>(10 * count + regex_[at_++] - '0', kMaxRepeats + 1);
    }
    if (count > kMaxRepeats) Fail("too many repetitions");
    return static_cast<int>(count);
  }
  void ReadRepetition(Node* term) {
    if (Take("*")) {
      term->least = 0, term->most = kNoEnd;
    } else if (Take("+")) {
      term->most = kNoEnd;
    } else if (Take("?")) {
      term->least = 0;
    } else if (IsRepetition()) {
      Take("{");
      term->least = term->most = Count();
      if (Take(",")) term->most = IsNext("}") ? kNoEnd : Count();
      Take("}");
      if (term->most != kNoEnd && term->most < term->least) Fail("{n,m} with n > m");
    } else {
      return;
    }
    Take("?");  // few or many: the texts are the same
  }

  int32_t Hex(size_t digits) {
    int32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = Next();
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) Fail("no hexadecimal digit");
      value = 16 * value + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }
  // The character of \u, behind the letter: four digits, two times four of a surrogate pair, or
  // any number of digits in braces.
  int32_t Numbered() {
    if (Take("{")) {
      const size_t end = regex_.find('}', at_);
      if (end == regex_.npos || end == at_ || end - at_ > 6) Fail("no hexadecimal digit");
      const int32_t point = Hex(end - at_);
      Take("}");
      if (point > kLastCodePoint) Fail("no such character");
      return point;
    }
    const int32_t high = Hex(4);
    const size_t behind = at_;
    if (high >= 0xd800 && high < 0xdc00 && Take("\\u")) {
      const int32_t low = Hex(4);
      if (low >= 0xdc00 && low < 0xe000) return 0x10000 + ((high - 0xd800) << 10) + low - 0xdc00;
      at_ = behind;
    }
    return high;
  }

  // Reads an escape behind its backslash and returns the characters that it stands for.
  CodePoints Escape(bool in_class) {
    const char c = Next();
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpaces;
      case 'S':
        return Complement(kAnySpaces);
      default:
        break;
    }
    int32_t point = static_cast<unsigned char>(c);
    if (c == 'u') {
      point = Numbered();
    } else if (c == 'x') {
      point = Hex(2);
    } else if (c == 'c' && !AtEnd() &&
               absl::ascii_isalpha(static_cast<unsigned char>(regex_[at_]))) {
      point = Next() % 32;
    } else if (c == 'b' && in_class) {
      point = '\b';
    } else if (c == '0' &&
               (AtEnd() || !absl::ascii_isdigit(static_cast<unsigned char>(regex_[at_])))) {
      point = 0;
    } else if (const size_t at = std::string("tnvfr").find(c); at != std::string::npos) {
      point = '\t' + static_cast<int32_t>(at);
    } else if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || point >= 128) {
      Fail("this escape is unknown or not supported");
    }
    return {{point, point}};
  }

  CodePoints ReadClass() {
    const bool negated = Take("^");
    CodePoints set;
    while (!Take("]")) {
      SpendWork(16);
      const CodePoints item = ReadItem();
      // Readers differ in what `\s` means: a class has only the spaces of all, and a negated class
      // lacks the spaces of any.
      set.insert(set.end(), item.begin(), item.end());
      if (negated && item == kSpaces) set.insert(set.end(), kAnySpaces.begin(), kAnySpaces.end());
      const bool is_range = at_ + 1 < regex_.size() && regex_[at_] == '-' && regex_[at_ + 1] != ']';
      if (!is_range) continue;
      ++at_;
      const CodePoints last = ReadItem();
      const bool is_one = item.size() == 1 && item[0].first == item[0].second && last.size() == 1 &&
                          last[0].first == last[0].second && last[0].first >= item[0].first;
      if (!is_one) Fail("a range from a class, or backwards");
      set.emplace_back(item[0].first, last[0].first);
    }
    return negated ? Complement(set) : Complement(Complement(set));
  }
  CodePoints ReadItem() {
    if (Take("\\")) return Escape(/*in_class=*/true);
    const int32_t point = NextPoint();
    return {{point, point}};
  }

  const std::string& regex_;
  size_t at_ = 0;
};

// --- Lengths ---

TextLengths Sum(const TextLengths& a, const TextLengths& b) {
  return {a.least + b.least, a.most < 0 || b.most < 0 ? -1 : a.most + b.most};
}

bool IsAnchor(const Node& node) {
  return node.kind == Node::Kind::kBegin || node.kind == Node::Kind::kEnd;
}

// Clamped, so that products of counts fit.
TextLengths LengthsOf(const Node& node) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (IsAnchor(node)) return {0, 0};
  TextLengths one = {1, 1};
  if (node.kind == Node::Kind::kGroup) {
    one = {kMost, 0};
    for (const Sequence& way : node.ways) {
      TextLengths all = {0, 0};
      for (const Node& term : way) all = Sum(all, LengthsOf(term));
      one.least = std::min(one.least, all.least);
      one.most = one.most < 0 || all.most < 0 ? -1 : std::max(one.most, all.most);
    }
  }
  const bool ends = node.most == 0 || one.most == 0 || (one.most > 0 && node.most > 0);
  return {std::min(one.least * node.least, kMost),
          ends ? std::min(one.most * std::max(node.most, 0), kMost) : -1};
}

// True if the whole text matches `way`, which has no other anchors.
bool IsShut(const Sequence& way) {
  return way.size() > 1 && way.front().kind == Node::Kind::kBegin &&
         way.back().kind == Node::Kind::kEnd &&
         std::none_of(way.begin() + 1, way.end() - 1,
                      [](const Node& term) { return term.has_anchor; });
}

// Lets the only term of `way` that has no fixed length keep to the lengths `wanted` of the whole.
void Clamp(const TextLengths& wanted, Sequence* way) {
  Node* free = nullptr;
  int64_t others = 0;
  for (Node& term : *way) {
    const TextLengths lengths = LengthsOf(term);
    if (lengths.least == lengths.most) {
      others += lengths.least;
    } else if (free != nullptr || term.kind != Node::Kind::kSet) {
      return;
    } else {
      free = &term;
    }
  }
  if (free == nullptr) return;
  const int64_t least = std::max<int64_t>(free->least, wanted.least - others);
  const int64_t most = wanted.most < 0  ? free->most
                       : free->most < 0 ? wanted.most - others
                                        : std::min<int64_t>(free->most, wanted.most - others);
  if ((most >= 0 || (wanted.most < 0 && most < 0)) && (most < 0 || least <= most)) {
    free->least = static_cast<int>(least), free->most = static_cast<int>(most);
  }
}

// --- Writing ---

std::string Class(const CodePoints& set) {
  std::string out = "[";
  for (const auto& [first, last] : set) {
    absl::StrAppendFormat(&out, "\\U%08x", first);
    if (last > first) absl::StrAppendFormat(&out, "-\\U%08x", last);
  }
  return out + "]";
}

// The ways to write \uXXXX of a character in `set`. `digits`: as they may be written.
std::vector<std::string> Numbers(const CodePoints& set, bool lower_case) {
  std::vector<std::string> ways;
  for (const auto& [first, last] : set) {
    for (const std::vector<ByteRange>& digits : DigitRanges(first, last, /*bits=*/4, /*count=*/4)) {
      std::string& way = ways.emplace_back(R"("\\u")");
      for (const ByteRange& range : digits) {
        way += " [";
        for (int digit = range.first; digit <= range.last; ++digit) {
          absl::StrAppendFormat(&way, "%x", digit);
          if (digit > 9 && !lower_case) absl::StrAppendFormat(&way, "%X", digit);
        }
        way += ']';
      }
    }
  }
  return ways;
}

// One character of `set` in a JSON string, plain or escaped.
std::string InJson(const CodePoints& set, bool is_name) {
  std::vector<std::string> ways;
  const CodePoints plain = Intersection(set, Complement(kEscaped));
  if (!plain.empty()) ways.push_back(Class(plain));
  std::string letters;
  CodePoints lettered;
  for (const char* letter = kLetters; *letter != '\0'; letter += 2) {
    lettered.emplace_back(letter[1], letter[1]);
    // An escaped slash is allowed only where much may be.
    if (letter[1] == '/' && (is_name || !Has(set, '\\'))) continue;
    if (Has(set, letter[1])) absl::StrAppendFormat(&letters, "\\x%02x", letter[0]);
  }
  if (!letters.empty()) ways.push_back(absl::StrCat(R"("\\" [)", letters, "]"));
  // \uXXXX is allowed for every character of a wide set, as `.`, but of a narrow one only where
  // JSON demands it. A name has it only where JSON has no other escape.
  const bool is_wide = !is_name && Intersection(set, {{0x10000, kLastCodePoint}}) ==
                                       CodePoints{{0x10000, kLastCodePoint}};
  CodePoints numbered = {{0, 0x1f}};
  if (is_wide) numbered.insert(numbered.end(), {{0x80, 0xd7ff}, {0xe000, 0xffff}});
  if (is_name) numbered = Intersection(numbered, Complement(lettered));
  for (std::string& way : Numbers(Intersection(set, numbered), is_name)) {
    ways.push_back(std::move(way));
  }
  if (is_wide) {
    const std::string hex = " [0-9A-Fa-f] [0-9A-Fa-f]";
    ways.push_back(absl::StrCat(R"("\\u" [Dd] [89ABab])", hex, R"( "\\u" [Dd] [C-Fc-f])", hex));
  }
  // An escape is more than one part of EBNF, which a repetition would tear apart.
  const bool is_class = ways.size() == 1 && !plain.empty();
  return is_class ? ways[0] : absl::StrCat("(", absl::StrJoin(ways, " | "), ")");
}

// What stands beside an end of a part.
enum class Edge {
  kInside,  // other parts
  kOpen,    // any text, which the part has to write
  kShut,    // an end of the whole text
};

class Writer {
 public:
  explicit Writer(RegexPlace place) : place_(place) {}

  // Changes `group`.
  std::string Ways(Node* group, Edge left, Edge right) const {
    std::vector<std::string> ways;
    for (Sequence& way : group->ways) ways.push_back(Terms(&way, left, right));
    return ways.size() == 1 ? ways[0] : absl::StrCat("(", absl::StrJoin(ways, " | "), ")");
  }

 private:
  // Changes `terms`.
  std::string Terms(Sequence* sequence, Edge left, Edge right) const {
    Sequence& terms = *sequence;
    size_t begin = 0, end = terms.size();
    for (; begin < end && terms[begin].kind == Node::Kind::kBegin; ++begin) {
      if (left == Edge::kInside) Fail("^ is supported at the beginning only");
      left = Edge::kShut;
    }
    for (; begin < end && terms[end - 1].kind == Node::Kind::kEnd; --end) {
      if (right == Edge::kInside) Fail("$ is supported at the end only");
      right = Edge::kShut;
    }
    // Beside any text a repetition needs no more than its least count: two ways to read one text
    // cost steps.
    while (left == Edge::kOpen && begin < end && Shorten(&terms[begin])) ++begin;
    while (right == Edge::kOpen && begin < end && Shorten(&terms[end - 1])) --end;
    if (begin == end) {
      const std::string all = left == Edge::kOpen || right == Edge::kOpen ? AnyText() : "\"\"";
      SpendWork(64 * static_cast<int64_t>(all.size()));
      return all;
    }
    std::vector<std::string> parts;
    std::string plain;  // characters that stand for themselves, in a row
    const auto end_plain = [&] {
      if (!plain.empty()) parts.push_back(EbnfText(std::exchange(plain, "")));
    };
    for (size_t i = begin; i < end; ++i) {
      const Edge before = i == begin ? left : Edge::kInside;
      const Edge behind = i + 1 == end ? right : Edge::kInside;
      if (before == Edge::kOpen && !terms[i].has_anchor) {
        // The first of the characters, if one of them is all that is asked for.
        const bool is_only = behind == Edge::kOpen && IsOne(terms[i]);
        const CodePoints others = is_only ? Complement(terms[i].set) : CodePoints();
        parts.push_back(others.empty() ? AnyText() : absl::StrCat(Characters(others), "*"));
      }
      if (IsPlain(terms[i])) {
        AppendUtf8(static_cast<uint32_t>(terms[i].set[0].first), &plain);
      } else {
        end_plain();
        parts.push_back(Term(&terms[i], before, behind));
      }
      if (behind == Edge::kOpen && !terms[i].has_anchor) {
        end_plain();
        parts.push_back(AnyText());
      }
      SpendWork(64 * static_cast<int64_t>(parts.empty() ? 1 : parts.back().size()));
    }
    end_plain();
    return absl::StrJoin(parts, " ");
  }

  // True if nothing is left of the term.
  static bool Shorten(Node* term) {
    if (!term->has_anchor) term->most = term->least;
    return term->most == 0;
  }
  static bool IsOne(const Node& term) {
    return term.kind == Node::Kind::kSet && term.least == 1 && term.most == 1;
  }

  // A term with an anchor writes the text beside it, too, where its edges are open.
  std::string Term(Node* term, Edge before, Edge behind) const {
    if (IsAnchor(*term)) Fail("^ is supported at the beginning only, $ at the end");
    if (term->kind == Node::Kind::kSet) return absl::StrCat(Characters(term->set), Times(*term));
    if (!term->has_anchor) {
      const std::string one = Ways(term, Edge::kInside, Edge::kInside);
      return absl::StrCat("(", one, ")", Times(*term));
    }
    if (term->most != 1) Fail("^ and $ are not supported in repetitions");
    const std::string one = Ways(term, before, behind);
    Sequence none;
    return term->least == 1 ? one
                            : absl::StrCat("(", one, " | ", Terms(&none, before, behind), ")");
  }

  static std::string Times(const Node& term) {
    if (term.least == 1 && term.most == 1) return "";
    if (term.least == 0 && term.most == 1) return "?";
    if (term.most == kNoEnd && term.least < 2) return term.least == 0 ? "*" : "+";
    return absl::StrCat("{", term.least, ",", term.most == kNoEnd ? "" : absl::StrCat(term.most),
                        "}");
  }

  // True for a term that is one character, written as it is.
  bool IsPlain(const Node& term) const {
    const bool is_one = term.set.size() == 1 && term.set[0].first == term.set[0].second;
    return is_one && IsOne(term) && term.set[0].first != 0 &&
           !Has(kSurrogates, term.set[0].first) &&
           (place_ == RegexPlace::kAnswer || !Has(kEscaped, term.set[0].first));
  }
  std::string Characters(const CodePoints& all) const {
    const CodePoints set = Intersection(all, Complement(kSurrogates));
    if (set.empty()) Fail("an empty class");
    return place_ == RegexPlace::kAnswer ? Class(set) : InJson(set, place_ == RegexPlace::kName);
  }
  std::string AnyText() const {
    return absl::StrCat(place_ == RegexPlace::kName ? Characters(kAll) : JsonCharacter(), "*");
  }

  const RegexPlace place_;
};

}  // namespace

RegexRule RegexInEbnf(const std::string& regex, RegexPlace place, TextLengths wanted) {
  Node all = Reader(regex).Read();
  if (all.ways.size() == 1 && IsShut(all.ways[0])) Clamp(wanted, &all.ways[0]);
  TextLengths lengths = LengthsOf(all);
  const bool is_open = place != RegexPlace::kAnswer;
  if (is_open && !std::all_of(all.ways.begin(), all.ways.end(), IsShut)) lengths.most = -1;
  const Edge edge = is_open ? Edge::kOpen : Edge::kShut;
  return {Writer(place).Ways(&all, edge, edge), lengths};
}

}  // namespace fox
