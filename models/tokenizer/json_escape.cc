// Escaping, and unescaping by steps that each wait for enough bytes. See json_escape.h.
#include "models/tokenizer/json_escape.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

constexpr char kShortNames[] = "\"\\/bfnrt";
constexpr char kShortValues[] = "\"\\/\b\f\n\r\t";
static_assert(sizeof(kShortNames) == sizeof(kShortValues));
constexpr size_t kUnicodeEscape = 6;  // \uXXXX

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

enum class Match { kYes, kNo, kMore };  // kMore: the bytes end too early to tell

// Reads an escape \uXXXX at `at` into `unit`.
Match ReadUnicodeEscape(const std::string& text, size_t at, uint32_t* unit) {
  *unit = 0;
  for (size_t i = 0; i < kUnicodeEscape; ++i) {
    if (at + i == text.size()) return Match::kMore;
    const char c = text[at + i];
    if (i < 2) {
      if (c != "\\u"[i]) return Match::kNo;
      continue;
    }
    const int digit = HexValue(c);
    if (digit < 0) return Match::kNo;
    *unit = *unit * 16 + static_cast<uint32_t>(digit);
  }
  return Match::kYes;
}

bool IsHigh(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool IsLow(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Reads the escape at a backslash and returns how many bytes it has consumed; 0: it needs more.
size_t UnescapeOne(const std::string& text, size_t at, bool final, std::string* out) {
  if (at + 1 == text.size() && !final) return 0;
  if (at + 1 < text.size()) {
    for (size_t i = 0; kShortNames[i] != '\0'; ++i) {
      if (text[at + 1] == kShortNames[i]) {
        out->push_back(kShortValues[i]);
        return 2;
      }
    }
  }
  uint32_t unit = 0;
  const Match match = ReadUnicodeEscape(text, at, &unit);
  if (match == Match::kMore && !final) return 0;
  if (match != Match::kYes) {
    out->push_back('\\');
    return 1;
  }
  if (IsHigh(unit)) {
    uint32_t low = 0;
    const Match pair = ReadUnicodeEscape(text, at + kUnicodeEscape, &low);
    if (pair == Match::kMore && !final) return 0;
    if (pair == Match::kYes && IsLow(low)) {
      AppendUtf8(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), out);
      return 2 * kUnicodeEscape;
    }
  }
  AppendUtf8(IsHigh(unit) || IsLow(unit) ? kReplacementCharacter : unit, out);
  return kUnicodeEscape;
}

}  // namespace

std::string JsonEscape(const std::string& text) {
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true);
  FOX_CHECK(quoted.size() >= 2);
  return quoted.substr(1, quoted.size() - 2);
}

void JsonUnescape(std::string* pending, bool final, std::string* out) {
  size_t at = 0;
  while (at < pending->size()) {
    if ((*pending)[at] == '\\') {
      const size_t consumed = UnescapeOne(*pending, at, final, out);
      if (consumed == 0) break;
      at += consumed;
      continue;
    }
    const Utf8Unit unit = NextUtf8(pending->data() + at, pending->size() - at);
    if (unit.kind == Utf8Kind::kIncomplete && !final) break;
    AppendUtf8(unit.code_point, out);
    at += unit.length;
  }
  pending->erase(0, at);
}

}  // namespace fox
