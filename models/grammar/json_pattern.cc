// A regular expression, atom by atom. See json_pattern.h.
#include "models/grammar/json_pattern.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/grammar/utf8_ranges.h"
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
const CodePoints kEscaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};  // by JSON
// Pairs: the letter of an escape, its meaning.
constexpr char kLetters[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
static_assert(sizeof(kLetters) % 2 == 1, "pairs, and a NUL");
constexpr char kHex[] = "[0-9A-Fa-f]";

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

// The regular expression of one character of `set` in a JSON string, plain or escaped.
std::string Characters(const CodePoints& set) {
  std::vector<std::string> ways;
  std::string plain;
  for (const auto& [first, last] : Intersection(set, Complement(kEscaped))) {
    absl::StrAppendFormat(&plain, "\\u{%x}", first);
    if (last > first) absl::StrAppendFormat(&plain, "-\\u{%x}", last);
  }
  if (!plain.empty()) ways.push_back(absl::StrCat("[", plain, "]"));
  std::string letters;
  for (const char* letter = kLetters; *letter != '\0'; letter += 2) {
    if (letter[1] == '/' && !Has(set, '\\')) continue;  // only where much may be
    if (Has(set, letter[1])) absl::StrAppendFormat(&letters, "\\u{%x}", letter[0]);
  }
  if (!letters.empty()) ways.push_back(absl::StrCat("\\\\[", letters, "]"));
  // \uXXXX is allowed for every character of a wide set, as `.`, but of a narrow one only where
  // JSON demands it: names are not written in that way.
  const bool is_wide =
      Intersection(set, {{0x10000, kLastCodePoint}}) == CodePoints{{0x10000, kLastCodePoint}};
  const CodePoints numbered =
      is_wide ? CodePoints{{0, 0x1f}, {0x80, 0xd7ff}, {0xe000, 0xffff}} : CodePoints{{0, 0x1f}};
  for (const auto& [first, last] : Intersection(set, numbered)) {
    for (const std::vector<ByteRange>& digits : DigitRanges(first, last, /*bits=*/4, /*count=*/4)) {
      std::string& way = ways.emplace_back("\\\\u");
      for (const ByteRange& range : digits) {
        way += '[';
        for (int digit = range.first; digit <= range.last; ++digit) {
          absl::StrAppendFormat(&way, "%X", digit);
          if (digit > 9) absl::StrAppendFormat(&way, "%x", digit);
        }
        way += ']';
      }
    }
  }
  if (is_wide) {
    const std::string half = absl::StrCat("[Dd][89ABab]", kHex, kHex);
    ways.push_back(absl::StrCat("\\\\u", half, "\\\\u[Dd][C-Fc-f]", kHex, kHex));
  }
  if (ways.empty()) throw std::runtime_error("pattern: an empty class");
  return ways.size() == 1 && !plain.empty() ? ways[0]
                                            : absl::StrCat("(", absl::StrJoin(ways, "|"), ")");
}

class Pattern {
 public:
  explicit Pattern(const std::string& regex) : regex_(regex) {}

  std::string InJson() {
    std::string out;
    bool has_ways = false;
    Take('^');
    while (!AtEnd()) {
      const size_t before = out.size();
      const char c = regex_[at_];
      if (c == '$' && at_ + 1 == regex_.size()) break;
      has_ways |= c == '|';
      if (absl::StrContains("()|*+?{},", c) ||
          (absl::ascii_isdigit(static_cast<unsigned char>(c)))) {
        out += Next();
      } else if (Take('[')) {
        out += Characters(ReadClass());
      } else if (Take('.')) {
        out += Characters(Complement(kLineEnds));
      } else if (Take('\\')) {
        out += Characters(Escape());
      } else {
        const int32_t point = NextPoint();
        const bool is_plain =
            point < 128 && (absl::ascii_isalpha(static_cast<unsigned char>(point)) ||
                            absl::StrContains(" _-:@#%&=!<>~`;", static_cast<char>(point)));
        out += is_plain ? std::string(1, static_cast<char>(point)) : Characters({{point, point}});
      }
      SpendWork(static_cast<int64_t>(64 * (out.size() - before)));  // a dot becomes 700 bytes
    }
    return has_ways ? absl::StrCat("(", out, ")") : out;  // the quotes are around all alternatives
  }

 private:
  bool AtEnd() const { return at_ >= regex_.size(); }
  char Next() {
    return AtEnd() ? throw std::runtime_error("pattern: it ends early") : regex_[at_++];
  }
  bool Take(char c) { return !AtEnd() && regex_[at_] == c ? ++at_ > 0 : false; }

  int32_t NextPoint() {
    if (AtEnd()) Next();
    const Utf8Unit unit = NextUtf8(regex_.data() + at_, regex_.size() - at_);
    at_ += unit.length;
    return static_cast<int32_t>(unit.code_point);
  }

  int32_t Hex(int digits) {
    int32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Next();
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
        throw std::runtime_error("pattern: no hexadecimal digit");
      }
      value = 16 * value + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }

  // Reads an escape behind its backslash and returns the characters that it stands for.
  CodePoints Escape() {
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
      point = Hex(4);
    } else if (c == 'x') {
      point = Hex(2);
    } else if (const size_t at = std::string("tnvfr").find(c); at != std::string::npos) {
      point = '\t' + static_cast<int32_t>(at);
    } else if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || point >= 128) {
      throw std::runtime_error("pattern: this escape is unknown");
    }
    return {{point, point}};
  }

  CodePoints ReadClass() {
    const bool negated = Take('^');
    CodePoints set;
    while (!Take(']')) {
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
      if (!is_one) throw std::runtime_error("pattern: a range from a class, or backwards");
      set.emplace_back(item[0].first, last[0].first);
    }
    return negated ? Complement(set) : Complement(Complement(set));
  }
  CodePoints ReadItem() {
    if (Take('\\')) return Escape();
    const int32_t point = NextPoint();
    return {{point, point}};
  }

  const std::string& regex_;
  size_t at_ = 0;
};

// --- Integers ---

// The regular expression of the numbers from `first` to `last`, which have equally many digits.
std::string Digits(const std::string& first, const std::string& last) {
  FOX_CHECK(first.size() == last.size());
  if (first.empty()) return "";
  const size_t rest = first.size() - 1;
  const std::string zeros(rest, '0'), nines(rest, '9');
  const std::string low = first.substr(1), high = last.substr(1);
  if (first[0] == last[0]) return absl::StrCat(first.substr(0, 1), Digits(low, high));
  char from = first[0], to = last[0];
  std::string out = "(";
  if (low != zeros) absl::StrAppend(&out, std::string(1, from++), Digits(low, nines), "|");
  if (high != nines) absl::StrAppend(&out, std::string(1, to--), Digits(zeros, high), "|");
  if (from <= to) {
    absl::StrAppendFormat(&out, "[%c-%c]", from, to);
    for (size_t i = 0; i < rest; ++i) out += "[0-9]";
  } else {
    out.pop_back();  // the bar
  }
  return out + ")";
}

constexpr size_t kMaxDigits = 16;  // of a number without a bound

// The regular expression of the numbers from `first` to `last`, or without an end if `open`.
std::string Magnitudes(uint64_t first, uint64_t last, bool open) {
  FOX_CHECK(open || first <= last);
  std::string low = absl::StrCat(first), high = absl::StrCat(last), out = "(";
  if (open) high = std::string(std::max(low.size(), kMaxDigits), '9');
  for (; low.size() < high.size(); low = absl::StrCat("1", std::string(low.size(), '0'))) {
    absl::StrAppend(&out, Digits(low, std::string(low.size(), '9')), "|");
  }
  return absl::StrCat(out, Digits(low, high), ")");
}

uint64_t Magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

}  // namespace

std::string IntegerPattern(std::optional<int64_t> first, std::optional<int64_t> last) {
  FOX_CHECK(!first || !last || *first <= *last);
  std::string out;
  if (!first || *first < 0) {
    const uint64_t least = last && *last < 0 ? Magnitude(*last) : 1;
    absl::StrAppend(&out, "-", Magnitudes(least, Magnitude(first.value_or(0)), !first));
  }
  if (!last || *last >= 0) {
    const uint64_t least = first && *first > 0 ? Magnitude(*first) : 0;
    absl::StrAppend(&out, out.empty() ? "" : "|",
                    Magnitudes(least, Magnitude(last.value_or(0)), !last));
  }
  return absl::StrCat("(", out, ")");
}

std::string JsonCharacter() {
  const std::string h = "[0-9A-Fa-f] ";
  return absl::StrCat(R"(([^\"\\\0-\x1f] | "\\" ["\\/bfnrt] | "\\u" [0-9A-CE-Fa-ce-f] )", h, h, h,
                      R"(| "\\u" [Dd] [0-7] )", h, h, R"(| "\\u" [Dd] [89ABab] )", h, h,
                      R"("\\u" [Dd] [C-Fc-f] )", h, h, ")");
}

std::string JsonInteger() { return R"(("0" | "-"? [1-9] [0-9]{0,15}))"; }

std::string JsonNumber() {
  return R"("-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] ([+-]? [0-9]{1,2} |)"
         R"( "-" [1-9] [0-9]{2} | "+"? "1" [0-9]{2} | "+"? "2" [0-8] [0-9]))?)";
}

std::string PatternInJson(const std::string& regex) { return Pattern(regex).InJson(); }

}  // namespace fox
