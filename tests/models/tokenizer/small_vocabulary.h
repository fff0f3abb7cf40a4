// A byte-level BPE of 259 tokens for tests: the 256 bytes by value, "ab", "abc", <|endoftext|>.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/byte_level_bpe.h"

namespace fox {

inline nlohmann::json SmallVocab() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["<|endoftext|>"] = 258;
  return vocab;
}

inline constexpr char kSmallMerges[] = "#version: 0.2\na b\nab c\n";

// The definition of this tokenizer, with names of files that no loader uses.
inline BpeDefinition SmallDefinition() {
  BpeDefinition definition;
  definition.vocab_file = "V";
  definition.merges_file = "M";
  const nlohmann::json vocab = SmallVocab();
  for (const auto& [token, id] : vocab.items()) definition.vocab[token] = id;
  definition.merges = {{"a", "b"}, {"ab", "c"}};
  return definition;
}

}  // namespace fox
