// Lengths of an expression, and the rule that it becomes. See regex.h.
#include "models/grammar/regex.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/grammar/ebnf_rules.h"
#include "models/grammar/json_pattern.h"
#include "models/grammar/regex_reader.h"
#include "models/grammar/utf8_ranges.h"
#include "models/grammar/work_meter.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

const CodePoints kAll = {{0, kLastCodePoint}};
const CodePoints kSurrogates = {{0xd800, 0xdfff}};
const CodePoints kEscaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};  // by JSON
// Pairs: the letter of an escape, its meaning.
constexpr char kLetters[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
static_assert(sizeof(kLetters) % 2 == 1, "pairs, and a NUL");

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

// --- Lengths ---

TextLengths Sum(const TextLengths& a, const TextLengths& b) {
  return {a.least + b.least, a.most < 0 || b.most < 0 ? -1 : a.most + b.most};
}

bool IsAnchor(const RegexNode& node) {
  return node.kind == RegexNode::Kind::kBegin || node.kind == RegexNode::Kind::kEnd;
}

// Clamped, so that products of counts fit.
TextLengths LengthsOf(const RegexNode& node) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (IsAnchor(node)) return {0, 0};
  TextLengths one = {1, 1};
  if (node.kind == RegexNode::Kind::kGroup) {
    one = {kMost, 0};
    for (const RegexNode::Sequence& way : node.ways) {
      TextLengths all = {0, 0};
      for (const RegexNode& term : way) all = Sum(all, LengthsOf(term));
      one.least = std::min(one.least, all.least);
      one.most = one.most < 0 || all.most < 0 ? -1 : std::max(one.most, all.most);
    }
  }
  const bool ends = node.most == 0 || one.most == 0 || (one.most > 0 && node.most > 0);
  return {std::min(one.least * node.least, kMost),
          ends ? std::min(one.most * std::max(node.most, 0), kMost) : -1};
}

// True if the whole text matches `way`, which has no other anchors.
bool IsShut(const RegexNode::Sequence& way) {
  return way.size() > 1 && way.front().kind == RegexNode::Kind::kBegin &&
         way.back().kind == RegexNode::Kind::kEnd &&
         std::none_of(way.begin() + 1, way.end() - 1,
                      [](const RegexNode& term) { return term.has_anchor; });
}

// Lets the only term of `way` that has no fixed length keep to the lengths `wanted` of the whole.
void Clamp(const TextLengths& wanted, RegexNode::Sequence* way) {
  RegexNode* free = nullptr;
  int64_t others = 0;
  for (RegexNode& term : *way) {
    const TextLengths lengths = LengthsOf(term);
    if (lengths.least == lengths.most) {
      others += lengths.least;
    } else if (free != nullptr || term.kind != RegexNode::Kind::kSet) {
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
  std::string Ways(RegexNode* group, Edge left, Edge right) const {
    std::vector<std::string> ways;
    for (RegexNode::Sequence& way : group->ways) ways.push_back(Terms(&way, left, right));
    return ways.size() == 1 ? ways[0] : absl::StrCat("(", absl::StrJoin(ways, " | "), ")");
  }

 private:
  // Changes `terms`.
  std::string Terms(RegexNode::Sequence* sequence, Edge left, Edge right) const {
    RegexNode::Sequence& terms = *sequence;
    size_t begin = 0, end = terms.size();
    for (; begin < end && terms[begin].kind == RegexNode::Kind::kBegin; ++begin) {
      if (left == Edge::kInside) throw std::runtime_error("^ is supported at the beginning only");
      left = Edge::kShut;
    }
    for (; begin < end && terms[end - 1].kind == RegexNode::Kind::kEnd; --end) {
      if (right == Edge::kInside) throw std::runtime_error("$ is supported at the end only");
      right = Edge::kShut;
    }
    // Beside any text a repetition needs no more than its least count: two ways to read one text
    // cost steps.
    while (left == Edge::kOpen && begin < end && Shorten(&terms[begin])) ++begin;
    while (right == Edge::kOpen && begin < end && Shorten(&terms[end - 1])) --end;
    if (begin == end) {
      std::string all = left == Edge::kOpen || right == Edge::kOpen ? AnyText() : "\"\"";
      SpendWork(64 * static_cast<int64_t>(all.size()));
      return all;
    }
    std::vector<std::string> parts;
    size_t charged = 0;  // parts
    std::string plain;   // characters that stand for themselves, in a row
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
      SpendWork(64);
      for (; charged < parts.size(); ++charged) {
        SpendWork(64 * static_cast<int64_t>(parts[charged].size()));
      }
    }
    end_plain();
    return absl::StrJoin(parts, " ");
  }

  // True if nothing is left of the term.
  static bool Shorten(RegexNode* term) {
    if (!term->has_anchor) term->most = term->least;
    return term->most == 0;
  }
  static bool IsOne(const RegexNode& term) {
    return term.kind == RegexNode::Kind::kSet && term.least == 1 && term.most == 1;
  }

  // A term with an anchor writes the text beside it, too, where its edges are open.
  std::string Term(RegexNode* term, Edge before, Edge behind) const {
    if (IsAnchor(*term))
      throw std::runtime_error("^ is supported at the beginning only, $ at the end");
    if (term->kind == RegexNode::Kind::kSet)
      return absl::StrCat(Characters(term->set), Times(*term));
    if (!term->has_anchor) {
      const std::string one = Ways(term, Edge::kInside, Edge::kInside);
      return absl::StrCat("(", one, ")", Times(*term));
    }
    if (term->most != 1) throw std::runtime_error("^ and $ are not supported in repetitions");
    const std::string one = Ways(term, before, behind);
    RegexNode::Sequence none;
    return term->least == 1 ? one
                            : absl::StrCat("(", one, " | ", Terms(&none, before, behind), ")");
  }

  static std::string Times(const RegexNode& term) {
    if (term.least == 1 && term.most == 1) return "";
    if (term.least == 0 && term.most == 1) return "?";
    if (term.most == RegexNode::kNoEnd && term.least < 2) return term.least == 0 ? "*" : "+";
    return absl::StrCat("{", term.least, ",",
                        term.most == RegexNode::kNoEnd ? "" : absl::StrCat(term.most), "}");
  }

  // True for a term that is one character, written as it is.
  bool IsPlain(const RegexNode& term) const {
    const bool is_one = term.set.size() == 1 && term.set[0].first == term.set[0].second;
    return is_one && IsOne(term) && term.set[0].first != 0 &&
           !Has(kSurrogates, term.set[0].first) &&
           (place_ == RegexPlace::kAnswer || !Has(kEscaped, term.set[0].first));
  }
  std::string Characters(const CodePoints& all) const {
    const CodePoints set = Intersection(all, Complement(kSurrogates));
    if (set.empty()) throw std::runtime_error("an empty class");
    return place_ == RegexPlace::kAnswer ? Class(set) : InJson(set, place_ == RegexPlace::kName);
  }
  std::string AnyText() const {
    return absl::StrCat(place_ == RegexPlace::kName ? Characters(kAll) : JsonCharacter(), "*");
  }

  const RegexPlace place_;
};

}  // namespace

RegexRule RegexInEbnf(const std::string& regex, RegexPlace place, TextLengths wanted) {
  RegexNode all = ReadRegex(regex);
  if (all.ways.size() == 1 && IsShut(all.ways[0])) Clamp(wanted, &all.ways[0]);
  TextLengths lengths = LengthsOf(all);
  const bool is_open = place != RegexPlace::kAnswer;
  if (is_open && !std::all_of(all.ways.begin(), all.ways.end(), IsShut)) lengths.most = -1;
  const Edge edge = is_open ? Edge::kOpen : Edge::kShut;
  return {Writer(place).Ways(&all, edge, edge), lengths};
}

}  // namespace fox
