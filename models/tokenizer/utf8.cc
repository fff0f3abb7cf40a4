// UTF-8 by the table of well-formed sequences (Unicode standard, table 3-7). See utf8.h.
#include "models/tokenizer/utf8.h"

#include <utf8proc.h>

#include "kernels/core/check.h"

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
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    if (unit.kind != Utf8Kind::kValid) return false;
    at += unit.length;
  }
  return true;
}

bool IsWhiteSpace(uint32_t code_point) {
  if ((code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<int32_t>(code_point));
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  FOX_CHECK(code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF));
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<int32_t>(code_point), bytes);
  out->append(bytes, bytes + size);
}

void DrainUtf8(std::string* pending, bool final, Utf8Replacement replacement, std::string* out) {
  size_t at = 0;
  while (at < pending->size()) {
    const Utf8Unit unit = NextUtf8(pending->data() + at, pending->size() - at);
    if (unit.kind == Utf8Kind::kIncomplete && !final) break;
    // The bytes of a subpart after its first are continuation bytes, so none starts a character.
    const bool one = unit.kind == Utf8Kind::kValid || replacement == Utf8Replacement::kSubpart;
    for (size_t i = 0; i < (one ? 1 : unit.length); ++i) AppendUtf8(unit.code_point, out);
    at += unit.length;
  }
  pending->erase(0, at);
}

}  // namespace fox
