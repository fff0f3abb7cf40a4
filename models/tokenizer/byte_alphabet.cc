// The two directions of GPT-2's byte alphabet. See byte_alphabet.h.
#include "models/tokenizer/byte_alphabet.h"

#include <array>

#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;
constexpr uint32_t kStandIns = 68;  // bytes that are not printable Latin-1

bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint32_t, 256> character_of_byte = {};
  std::array<int, kFirstStandIn + kStandIns> byte_of_character = {};
};

Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte_of_character.fill(-1);
  uint32_t next = kFirstStandIn;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = IsPrintable(byte) ? byte : next++;
    alphabet.character_of_byte[byte] = character;
    alphabet.byte_of_character[character] = static_cast<int>(byte);
  }
  return alphabet;
}

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet = MakeAlphabet();
  return alphabet;
}

}  // namespace

std::string CharacterOfByte(uint8_t byte) {
  std::string out;
  AppendUtf8(GetAlphabet().character_of_byte[byte], &out);
  return out;
}

std::optional<std::string> BytesOfToken(const std::string& token) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Unit unit = NextUtf8(token.data() + i, token.size() - i);
    if (unit.code_point >= alphabet.byte_of_character.size()) return std::nullopt;
    const int byte = alphabet.byte_of_character[unit.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += unit.length;
  }
  return bytes;
}

}  // namespace fox
