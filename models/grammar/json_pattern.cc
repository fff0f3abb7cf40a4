// Ranges of numbers, digit by digit. See json_pattern.h.
#include "models/grammar/json_pattern.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

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
    absl::StrAppend(&out, "[", std::string(1, from), "-", std::string(1, to), "]");
    if (rest > 0) absl::StrAppend(&out, "[0-9]{", rest, "}");
  } else {
    out.pop_back();  // the bar
  }
  return out + ")";
}

constexpr size_t kMaxDigits = 16;  // of a number without a bound

// The regular expression of the numbers from `first` to `last`, or without an end if `open`.
// Numbers of fewer digits than `last` are one way, because each way is followed beside the others.
std::string Magnitudes(uint64_t first, uint64_t last, bool open) {
  FOX_CHECK(open || first <= last);
  const std::string low = absl::StrCat(first);
  std::string high = absl::StrCat(last);
  if (open) high = std::string(std::max(low.size(), kMaxDigits), '9');
  if (low.size() == high.size()) return absl::StrCat("(", Digits(low, high), ")");
  std::string out = absl::StrCat("(", Digits(low, std::string(low.size(), '9')), "|");
  if (low.size() + 1 < high.size()) {
    absl::StrAppend(&out, "[1-9][0-9]{", low.size(), ",", high.size() - 2, "}|");
  }
  const std::string first_of_high = absl::StrCat("1", std::string(high.size() - 1, '0'));
  return absl::StrCat(out, Digits(first_of_high, high), ")");
}

uint64_t Magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// A bound of a magnitude: its whole part, and the digits of its fraction without zeros at the end.
struct Decimal {
  uint64_t whole = 0;
  std::string fraction;
  bool excluded = false;
};

Decimal DecimalOf(const NumberBound& bound) {
  char text[400];
  const auto end = std::to_chars(text, text + sizeof(text), bound.value, std::chars_format::fixed);
  FOX_CHECK(end.ec == std::errc());
  const std::string all(text, end.ptr);
  const size_t point = std::min(all.find('.'), all.size());
  Decimal out{0, all.substr(std::min(point + 1, all.size())), bound.excluded};
  FOX_CHECK(absl::SimpleAtoi(all.substr(0, point), &out.whole));
  return out;
}

// The fractions from `low` to `high`, digits behind a point; without a value: no such bound.
struct Fractions {
  std::optional<std::string> low, high;
  bool low_excluded = false, high_excluded = false;

  // True if no more digits (0) lie between the bounds.
  bool holds_zero() const {
    return (!low || (low->empty() && !low_excluded)) && (!high || !high->empty() || !high_excluded);
  }
  // The bounds of what may follow the digit.
  std::optional<Fractions> Behind(char digit) const {
    Fractions rest;
    const auto first = [](const std::string& digits) { return digits.empty() ? '0' : digits[0]; };
    const auto others = [](const std::string& digits) {
      return digits.substr(std::min<size_t>(1, digits.size()));
    };
    if (low && digit < first(*low)) return {};
    if (high && digit > first(*high)) return {};
    if (low && digit == first(*low)) rest.low = others(*low), rest.low_excluded = low_excluded;
    if (high && digit == first(*high))
      rest.high = others(*high), rest.high_excluded = high_excluded;
    if (rest.low && rest.low->empty() && !rest.low_excluded) rest.low.reset();
    return rest;
  }
};

// The regular expression of one to `most` digits of such a fraction; "": there are none.
std::string Fraction(const Fractions& range, int most) {
  if (most == 0) return "";
  if (!range.low && !range.high) return absl::StrCat("[0-9]{1,", most, "}");
  std::vector<std::string> ways;
  std::string free;  // digits behind which any may follow
  for (char digit = '0'; digit <= '9'; ++digit) {
    const std::optional<Fractions> rest = range.Behind(digit);
    if (!rest) continue;
    if (!rest->low && !rest->high) {
      free += digit;
      continue;
    }
    const std::string more = Fraction(*rest, most - 1);
    if (!rest->holds_zero() && more.empty()) continue;
    ways.push_back(absl::StrCat(std::string(1, digit), more.empty() ? "" : "(", more,
                                more.empty()         ? ""
                                : rest->holds_zero() ? ")?"
                                                     : ")"));
  }
  if (!free.empty()) ways.push_back(absl::StrCat("[", free, "][0-9]{0,", most - 1, "}"));
  return absl::StrJoin(ways, "|");
}

// The bound itself if it has at most `digits` digits behind the point, else the next such number in
// the range: no number of these digits lies between the two.
NumberBound Inside(NumberBound bound, int digits, bool upward) {
  const double unit = std::pow(10.0, digits);
  double steps = upward ? std::ceil(bound.value * unit) : std::floor(bound.value * unit);
  // The product is rounded.
  while (upward ? steps / unit < bound.value : steps / unit > bound.value) steps += upward ? 1 : -1;
  const double value = steps / unit;
  return {value, bound.excluded && value == bound.value};
}

// Adds the decimals whose whole part matches `whole` and whose fraction is in `range`.
void AddDecimals(const std::string& whole, const Fractions& range, int digits,
                 std::vector<std::string>* ways) {
  const std::string fraction = Fraction(range, digits);
  const bool may_be_whole = range.holds_zero();
  if (!may_be_whole && fraction.empty()) return;
  ways->push_back(absl::StrCat(whole, fraction.empty() ? "" : "(\\.(", fraction,
                               fraction.empty() ? ""
                               : may_be_whole   ? "))?"
                                                : "))"));
}

// Adds the decimals from `low` to `high`, which are not negative.
void AddMagnitudes(const Decimal& low, const std::optional<Decimal>& high, int digits,
                   const char* sign, std::vector<std::string>* ways) {
  const auto at = [&](uint64_t whole) { return absl::StrCat(sign, whole); };
  Fractions range{low.fraction, {}, low.excluded, false};
  if (range.low->empty() && !low.excluded) range.low.reset();
  if (high && high->whole == low.whole) {
    range.high = high->fraction, range.high_excluded = high->excluded;
    return AddDecimals(at(low.whole), range, digits, ways);
  }
  AddDecimals(at(low.whole), range, digits, ways);
  if (!high || high->whole - low.whole > 1) {
    const std::string between =
        Magnitudes(low.whole + 1, high ? high->whole - 1 : 0, /*open=*/!high);
    AddDecimals(absl::StrCat(sign, between), {}, digits, ways);
  }
  if (high) AddDecimals(at(high->whole), {{}, high->fraction, false, high->excluded}, digits, ways);
}

}  // namespace

std::string NumberPattern(std::optional<NumberBound> least, std::optional<NumberBound> most) {
  constexpr double kLargest = 1e16;  // JsonNumber has no larger one
  if (least && least->value <= -kLargest) least.reset();
  if (most && most->value >= kLargest) most.reset();
  int digits = 15;  // of a double they are exact, so that a number beside a bound is not the bound
  size_t needed = 0;
  for (const std::optional<NumberBound>& bound : {least, most}) {
    if (!bound) continue;
    if (std::abs(bound->value) >= kLargest) throw std::runtime_error("beyond 16 digits");
    const Decimal decimal = DecimalOf({std::abs(bound->value), false});
    const auto wholes = static_cast<int>(absl::StrCat(decimal.whole).size());
    digits = std::min(digits, std::max(15 - wholes, 0));
    needed = std::max(needed, decimal.fraction.size());
  }
  if (needed > static_cast<size_t>(digits)) {
    if (least) least = Inside(*least, digits, /*upward=*/true);
    if (most) most = Inside(*most, digits, /*upward=*/false);
    if (least && most && least->value > most->value) {
      throw std::runtime_error("of more than 15 digits");
    }
  }
  std::vector<std::string> ways;
  const auto magnitude = [](const NumberBound& bound) {
    return DecimalOf({std::abs(bound.value), bound.excluded});
  };
  const Decimal zero, above_zero{0, "", true};
  if (!least || least->value < 0) {
    const bool has_end = most && most->value < 0;
    std::optional<Decimal> high;
    if (least) high = magnitude(*least);
    AddMagnitudes(has_end ? magnitude(*most) : above_zero, high, digits, "-", &ways);
  }
  if (!most || most->value >= 0) {
    const bool has_start = least && least->value >= 0;
    std::optional<Decimal> high;
    if (most) high = magnitude(*most);
    AddMagnitudes(has_start ? magnitude(*least) : zero, high, digits, "", &ways);
  }
  return ways.empty() ? "" : absl::StrCat("(", absl::StrJoin(ways, "|"), ")");
}

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

std::string NumberInEbnf(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '[' || c == '{') {
      const size_t end = pattern.find(c == '[' ? ']' : '}', i);
      absl::StrAppend(&out, c == '[' ? " " : "", pattern.substr(i, end - i + 1));
      i = end;
    } else if (c == '(' || c == ')' || c == '|' || c == '?') {
      absl::StrAppend(&out, c == '(' ? " " : "", std::string(1, c));
    } else {
      absl::StrAppend(&out, " \"", std::string(1, c == '\\' ? pattern[++i] : c), "\"");
    }
  }
  return out;
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

}  // namespace fox
