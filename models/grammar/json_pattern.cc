// A regular expression, atom by atom. See json_pattern.h.
#include "models/grammar/json_pattern.h"

#include <bitset>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fox {
namespace {

using Ascii = std::bitset<128>;

Ascii Range(int first, int last) {
  Ascii set;
  for (int c = first; c <= last; ++c) set.set(static_cast<size_t>(c));
  return set;
}
const Ascii kDigits = Range('0', '9');
const Ascii kWord = kDigits | Range('a', 'z') | Range('A', 'Z') | Range('_', '_');
const Ascii kSpaces = Range('\t', '\r') | Range(' ', ' ');
const Ascii kEscaped = Range(0, 0x1f) | Range('"', '"') | Range('\\', '\\');  // by JSON

// A class of characters, others than those of ASCII as they are written.
std::string Class(const Ascii& set, const std::string& others, bool negated) {
  const Ascii listed = negated ? set | kEscaped : set & ~kEscaped;
  if (!negated && listed.none() && others.empty())
    throw std::runtime_error("pattern: only escapes");
  if (!negated && listed == Range('^', '^') && others.empty()) return "\\^";
  std::string out = negated ? "[^" : "[";
  for (size_t c = 0; c < listed.size(); ++c) {
    if (listed[c] && c != '^') absl::StrAppendFormat(&out, "\\u{%x}", c);
  }
  absl::StrAppend(&out, others, listed['^'] ? "\\u{5e}" : "");  // not at the start
  return out + "]";
}

class Pattern {
 public:
  explicit Pattern(const std::string& regex) : regex_(regex) {}

  std::string InJson() {
    std::string out;
    Take('^');
    while (!AtEnd()) {
      const char c = Next();
      if (c == '$' && AtEnd()) break;
      if (c == '[') {
        out += ReadClass();
      } else if (c == '\\') {
        out += Escape(Next());
      } else {
        out += c == '.' ? Class({}, "", true) : c == '"' ? Escape(c) : std::string(1, c);
      }
    }
    // Quotes are around all ways.
    return absl::StrContains(out, '|') ? absl::StrCat("(", out, ")") : out;
  }

 private:
  bool AtEnd() const { return at_ >= regex_.size(); }
  char Next() {
    return AtEnd() ? throw std::runtime_error("pattern: it ends early") : regex_[at_++];
  }
  bool Take(char c) { return !AtEnd() && regex_[at_] == c ? ++at_ > 0 : false; }

  static std::string Escape(char c) {
    if (c == 's') return Class(Range(' ', ' '), "", false);
    if (c == 'D') return Class(kDigits, "", true);
    if (c == 'W') return Class(kWord, "", true);
    if (c == 'S') return Class(kSpaces, "", true);
    if (c == '"' || absl::StrContains("ntrf", c)) {
      return absl::StrCat("(\\\\", std::string(1, c), ")");
    }
    if (c == '\\') return "(\\\\\\\\)";
    return absl::StrCat("\\", std::string(1, c == 'd' || c == 'w' ? c : Plain(c)));
  }

  // Of an escape that stands for itself.
  static char Plain(char c) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)))
      throw std::runtime_error("pattern: this escape is unknown");
    return c;
  }

  std::string ReadClass() {
    const bool negated = Take('^');
    Ascii set;
    std::string others;
    while (!Take(']')) {
      const char c = Next();
      if (static_cast<unsigned char>(c) >= 128) {
        others += c;
        if (Take('-')) others += '-';
        continue;
      }
      if (c != '\\') {
        AddRange(c, &set);
        continue;
      }
      const char escape = Next();
      if (escape == 'd') {
        set |= kDigits;
      } else if (escape == 'w') {
        set |= kWord;
      } else if (escape == 's') {
        set |= kSpaces;
      } else if (absl::StrContains("ntrf", escape)) {
        set |= Range('\n', '\n');  // one of those that JSON escapes
      } else {
        if (absl::StrContains("DWS", escape)) throw std::runtime_error("pattern: \\D in a class");
        AddRange(Plain(escape), &set);
      }
    }
    return Class(set, others, negated);
  }

  void AddRange(char first, Ascii* set) {
    const bool range = at_ + 1 < regex_.size() && regex_[at_] == '-' && regex_[at_ + 1] != ']';
    if (range) ++at_;
    char last = range ? Next() : first;
    if (range && last == '\\') last = Plain(Next());
    if (last < first) throw std::runtime_error("pattern: a range beyond ASCII");
    *set |= Range(first, last);
  }

  const std::string& regex_;
  size_t at_ = 0;
};

// --- Integers ---

// Of the numbers from `first` to `last`, which have the same count of digits.
std::string Digits(const std::string& first, const std::string& last) {
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

// Of a magnitude; `last` 0 with `open`: no bound.
std::string Magnitudes(uint64_t first, uint64_t last, bool open) {
  std::string low = absl::StrCat(first), high = absl::StrCat(last), out = "(";
  if (open) {
    absl::StrAppend(&out, "[1-9][0-9]{", low.size(), ",}|");
    high = std::string(low.size(), '9');
  }
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

std::string PatternInJson(const std::string& regex) { return Pattern(regex).InJson(); }

}  // namespace fox
