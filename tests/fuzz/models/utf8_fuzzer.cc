// UTF-8 and JSON escapes against references written from the definitions: validity, replacement in
// one piece and byte by byte, escaping as the JSON library does it and the way back.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// True if the first `size` bytes begin the encoding of a code point or are one. It encodes every
// code point that they may belong to.
enum class Found { kNothing, kBeginning, kWhole };
Found Look(const std::string& text, size_t at, size_t size) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint32_t lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 0 || lead >= 0xF8 || size > length) return Found::kNothing;
  // The code points that begin so lie between these.
  uint32_t low = lead & (length == 1 ? 0x7Fu : 0xFFu >> (length + 1));
  uint32_t high = low;
  for (size_t i = 1; i < length; ++i) {
    if (i < size && (byte(i) & 0xC0) != 0x80) return Found::kNothing;
    low = low << 6 | (i < size ? byte(i) & 0x3Fu : 0u);
    high = high << 6 | (i < size ? byte(i) & 0x3Fu : 0x3Fu);
  }
  const uint32_t least = length == 1 ? 0 : length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  for (uint32_t point = std::max(low, least); point <= std::min(high, 0x10FFFFu); ++point) {
    if (point >= 0xD800 && point < 0xE000) {
      point = 0xDFFF;
      continue;
    }
    return size == length ? Found::kWhole : Found::kBeginning;
  }
  return Found::kNothing;
}

struct Replaced {
  std::string subparts, bytes;  // with one U+FFFD for a subpart, for a byte
  bool valid = true;
  size_t incomplete = 0;  // bytes at the end that more could complete
};

Replaced Reference(const std::string& text) {
  Replaced out;
  for (size_t at = 0; at < text.size();) {
    size_t size = 1;  // of the longest that begins or is a character
    while (at + size < text.size() && Look(text, at, size) == Found::kBeginning &&
           Look(text, at, size + 1) != Found::kNothing) {
      ++size;
    }
    const Found found = Look(text, at, size);
    if (found == Found::kWhole) {
      out.subparts += text.substr(at, size);
      out.bytes += text.substr(at, size);
    } else {
      out.valid = false;
      out.subparts += kReplacement;
      for (size_t i = 0; i < size; ++i) out.bytes += kReplacement;
      if (found == Found::kBeginning && at + size == text.size()) out.incomplete = size;
    }
    at += size;
  }
  return out;
}

std::string DrainedByteByByte(const std::string& text, Utf8Replacement replacement,
                              size_t incomplete) {
  std::string pending, out;
  for (const char byte : text) {
    pending.push_back(byte);
    DrainUtf8(&pending, /*final=*/false, replacement, &out);
    FOX_CHECK(pending.size() <= 3);
  }
  FOX_CHECK(pending.size() == incomplete);
  DrainUtf8(&pending, /*final=*/true, replacement, &out);
  FOX_CHECK(pending.empty());
  return out;
}

std::string Unescaped(const std::string& text, size_t step) {
  std::string pending, out;
  for (size_t at = 0; at < text.size(); at += step) {
    pending += text.substr(at, step);
    JsonUnescape(&pending, /*final=*/false, &out);
    FOX_CHECK(pending.size() <= 11);
  }
  JsonUnescape(&pending, /*final=*/true, &out);
  FOX_CHECK(pending.empty());
  return out;
}

}  // namespace

FUZZ_TEST(utf8) {
  const size_t step = 1 + in.Below(16);
  const std::string text = in.Rest();
  const Replaced expected = Reference(text);
  FOX_CHECK(IsValidUtf8(text) == expected.valid);
  FOX_CHECK(DrainedByteByByte(text, Utf8Replacement::kSubpart, expected.incomplete) ==
            expected.subparts);
  FOX_CHECK(DrainedByteByByte(text, Utf8Replacement::kByte, expected.incomplete) == expected.bytes);
  FOX_CHECK(IsValidUtf8(expected.subparts));
  // Any text, which may have escapes, gives the same result if it is cut anywhere.
  const std::string unescaped = Unescaped(text, text.size() + 1);
  FOX_CHECK(IsValidUtf8(unescaped));
  FOX_CHECK(Unescaped(text, step) == unescaped);
  // The library gives the same result for a text that is a valid inside of a JSON string.
  const bool nul = text.find('\0') != std::string::npos;  // to the library, an end
  const Json json = Json::parse('"' + text + '"', nullptr, /*allow_exceptions=*/false);
  if (json.is_string() && !nul) FOX_CHECK(unescaped == json.get<std::string>());
  if (!expected.valid) return;
  const std::string escaped = JsonEscape(text);
  FOX_CHECK('"' + escaped + '"' == Json(text).dump(-1, ' ', /*ensure_ascii=*/true));
  FOX_CHECK(Unescaped(escaped, step) == text);
}

}  // namespace fox
