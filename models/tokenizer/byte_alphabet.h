// GPT-2's byte alphabet: vocab.json and merges.txt write each byte as one printable character.
// Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and up. Read
// byte_level_bpe.h next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fox {

// The character, as UTF-8, that stands for `byte`.
std::string CharacterOfByte(uint8_t byte);

// The bytes that `token` stands for; no value if a character is not in the alphabet.
// REQUIRES: `token` is valid UTF-8.
std::optional<std::string> BytesOfToken(const std::string& token);

}  // namespace fox
