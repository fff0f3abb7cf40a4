// UTF-8 by the table of well-formed sequences (Unicode standard, table 3-7). See utf8.h.
#include "models/tokenizer/utf8.h"

#include <cstring>

namespace fox {
namespace {

struct Lead {
  size_t length = 0;  // of the whole sequence; 0: not a lead byte
  uint8_t second_min = 0x80, second_max = 0xBF;
};

Lead ClassifyLead(uint8_t byte) {  // not of ASCII
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0};
}

}  // namespace

Utf8Unit NextUtf8(const char* data, size_t size) {
  const auto first = static_cast<uint8_t>(data[0]);
  if (first < 0x80) return {Utf8Kind::kValid, first, 1};
  const Lead lead = ClassifyLead(first);
  if (lead.length == 0) return {Utf8Kind::kInvalid, kReplacementCharacter, 1};
  uint32_t code_point = first & (0xFFu >> (lead.length + 1));
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == size) return {Utf8Kind::kIncomplete, kReplacementCharacter, i};
    const auto byte = static_cast<uint8_t>(data[i]);
    const uint8_t low = i == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, kReplacementCharacter, i};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kValid, code_point, lead.length};
}

bool IsValidUtf8(const std::string& text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word = 0;
    if (i + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & kHighBits) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = NextUtf8(text.data() + i, text.size() - i);
    if (unit.kind != Utf8Kind::kValid) return false;
    i += unit.length;
  }
  return true;
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void DrainUtf8(std::string* pending, bool final, Utf8Replacement replacement, std::string* out) {
  size_t at = 0;
  while (at < pending->size()) {
    const Utf8Unit unit = NextUtf8(pending->data() + at, pending->size() - at);
    if (unit.kind == Utf8Kind::kIncomplete && !final) break;
    // All bytes of a subpart but the first continue a character, so none of them starts one.
    const bool one = unit.kind == Utf8Kind::kValid || replacement == Utf8Replacement::kSubpart;
    for (size_t i = 0; i < (one ? 1 : unit.length); ++i) AppendUtf8(unit.code_point, out);
    at += unit.length;
  }
  pending->erase(0, at);
}

}  // namespace fox
