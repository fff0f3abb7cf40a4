// Integers digit by digit. See json_pattern.h.
#include "models/grammar/json_pattern.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

}  // namespace fox
