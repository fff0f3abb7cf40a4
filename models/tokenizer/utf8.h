// UTF-8: validation, decoding and U+FFFD replacement. Surrogates, overlong forms and code points
// above U+10FFFF are ill-formed. Read token_stream.h next: it needs to know what is incomplete and
// what can never become valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fox {

inline constexpr uint32_t kReplacementCharacter = 0xFFFD;

enum class Utf8Kind {
  kValid,       // one code point
  kInvalid,     // a maximal subpart that no further byte can complete
  kIncomplete,  // the data ends inside a sequence that is well-formed so far
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kInvalid;
  uint32_t code_point = kReplacementCharacter;  // kReplacementCharacter unless kValid
  size_t length = 0;                            // bytes, 1 to 4
};

// The unit at the start of `data`. REQUIRES: size > 0.
Utf8Unit NextUtf8(const char* data, size_t size);

// A byte of a sequence that is not its first.
inline bool IsContinuationByte(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

bool IsValidUtf8(const std::string& text);

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t code_point);

// REQUIRES: `code_point` is not a surrogate and at most U+10FFFF.
void AppendUtf8(uint32_t code_point, std::string* out);

// What one U+FFFD stands for.
enum class Utf8Replacement {
  kSubpart,  // a maximal subpart: the Unicode standard, Python's errors="replace"
  kByte,     // a byte: sentencepiece
};

// Moves the bytes that further ones cannot change from the front of `pending` to `out`, ill-formed
// sequences replaced by U+FFFD. At most 3 bytes stay in `pending`; none when `final`.
void DrainUtf8(std::string* pending, bool final, Utf8Replacement replacement, std::string* out);

}  // namespace fox
