// UTF-8: validation, decoding and U+FFFD replacement. Surrogates, overlong forms and code points
// above U+10FFFF are ill-formed. Bytes that are incomplete are told apart from bytes that can never
// become valid. Read token_stream.h next.
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

// True for every byte of a sequence except its first.
inline bool IsContinuationByte(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

bool IsValidUtf8(const std::string& text);

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t code_point);

// REQUIRES: `code_point` is not a surrogate and at most U+10FFFF.
void AppendUtf8(uint32_t code_point, std::string* out);

// The part of ill-formed UTF-8 for which one U+FFFD stands.
enum class Utf8Replacement {
  kSubpart,  // a maximal subpart: the Unicode standard, Python's errors="replace"
  kByte,     // a byte: sentencepiece
};

// Moves bytes from the front of `pending` to `out`, as far as bytes that may follow cannot change
// the result. Ill-formed sequences become U+FFFD. At most 3 bytes stay in `pending`; none if
// `final`.
void DrainUtf8(std::string* pending, bool final, Utf8Replacement replacement, std::string* out);

}  // namespace fox
