// Writes sentencepiece models (ModelProto) field by field, well-formed or not, for tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "models/tokenizer/sentencepiece_check.h"

namespace fox {

inline std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

inline std::string BytesField(unsigned field, const std::string& bytes) {
  return Varint(field * 8 + 2) + Varint(bytes.size()) + bytes;
}

inline std::string VarintField(unsigned field, uint64_t value) {
  return Varint(field * 8) + Varint(value);
}

inline std::string PieceField(const std::string& text, PieceType type, float score = 0) {
  std::string bits(sizeof(score), '\0');
  std::memcpy(bits.data(), &score, sizeof(score));
  return BytesField(1, BytesField(1, text) + Varint(2 * 8 + 5) + bits +
                           VarintField(3, static_cast<uint64_t>(type)));
}

inline constexpr uint64_t kBpe = 2;  // TrainerSpec.ModelType

inline std::string Trainer(bool byte_fallback) {
  return BytesField(2, VarintField(3, kBpe) + VarintField(35, byte_fallback ? 1 : 0));
}

inline std::string Start() {
  return PieceField("<unk>", PieceType::kUnknown) + PieceField("<s>", PieceType::kControl) +
         PieceField("</s>", PieceType::kControl);
}

inline std::string Letters() {
  return PieceField("a", PieceType::kNormal, -3) + PieceField("b", PieceType::kNormal, -4) +
         PieceField("ab", PieceType::kNormal, -1) +
         PieceField("\xE2\x96\x81", PieceType::kNormal, -2);
}

inline std::string BytePieces(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    char text[16];
    std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(i));
    out += PieceField(text, PieceType::kByte);
  }
  return out;
}

// Settings in messages of their own, to be appended to a model: the last value of a field wins.
inline std::string UnkSurface(const std::string& text) {
  return BytesField(2, BytesField(44, text));
}

inline std::string Spaces(bool add_dummy_prefix, bool remove_extra_whitespaces) {
  return BytesField(3, VarintField(3, add_dummy_prefix ? 1 : 0) +
                           VarintField(4, remove_extra_whitespaces ? 1 : 0));
}

}  // namespace fox
