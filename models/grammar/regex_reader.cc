// Recursive descent over the bytes of an expression. See regex_reader.h.
#include "models/grammar/regex_reader.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "models/grammar/work_meter.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

const CodePoints kDigits = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpaces = {{'\t', '\r'}, {' ', ' '}};
// The spaces of ECMAScript and of Python together: the complement of `\S`.
const CodePoints kAnySpaces = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},
                               {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                               {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                               {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

constexpr int kMaxRepeats = 1 << 20;

[[noreturn]] void Fail(const std::string& problem) { throw std::runtime_error(problem); }

class Reader {
 public:
  explicit Reader(const std::string& regex) : regex_(regex) {}

  RegexNode Read() {
    RegexNode all = ReadWays();
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
  RegexNode ReadWays() {
    RegexNode group{RegexNode::Kind::kGroup};
    group.ways.emplace_back();
    while (!AtEnd() && !IsNext(")")) {
      SpendWork(64);
      if (Take("|")) {
        group.ways.emplace_back();
        continue;
      }
      RegexNode term = ReadTerm();
      group.has_anchor |= term.has_anchor;
      group.ways.back().push_back(std::move(term));
    }
    return group;
  }

  RegexNode ReadTerm() {
    if (Take("^")) return {.kind = RegexNode::Kind::kBegin, .has_anchor = true};
    if (Take("$")) return {.kind = RegexNode::Kind::kEnd, .has_anchor = true};
    if (IsNext("*") || IsNext("+") || IsNext("?") || IsRepetition()) Fail("nothing to repeat");
    RegexNode term;
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
  void ReadRepetition(RegexNode* term) {
    if (Take("*")) {
      term->least = 0, term->most = RegexNode::kNoEnd;
    } else if (Take("+")) {
      term->most = RegexNode::kNoEnd;
    } else if (Take("?")) {
      term->least = 0;
    } else if (IsRepetition()) {
      Take("{");
      term->least = term->most = Count();
      if (Take(",")) term->most = IsNext("}") ? RegexNode::kNoEnd : Count();
      Take("}");
      if (term->most != RegexNode::kNoEnd && term->most < term->least) Fail("{n,m} with n > m");
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

}  // namespace

RegexNode ReadRegex(const std::string& regex) {
  if (!IsValidUtf8(regex)) Fail("not valid UTF-8");
  return Reader(regex).Read();
}

}  // namespace fox
