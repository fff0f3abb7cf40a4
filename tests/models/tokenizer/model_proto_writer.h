// Parts of sentencepiece models (ModelProto), well-formed or not, for tests. Parts that are
// appended to each other are one model: pieces add up, and the last value of a setting wins.
#pragma once

#include <string>

#include "absl/strings/str_format.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "sentencepiece_model.pb.h"

namespace fox {

// The part that `set` makes of an empty model.
template <typename Set>
std::string ModelPart(const Set& set) {
  sentencepiece::ModelProto model;
  set(model);
  return model.SerializeAsString();
}

inline std::string PieceField(const std::string& text, PieceType type, float score = 0) {
  return ModelPart([&](auto& model) {
    sentencepiece::ModelProto::SentencePiece& piece = *model.add_pieces();
    piece.set_piece(text);
    piece.set_score(score);
    piece.set_type(static_cast<sentencepiece::ModelProto::SentencePiece::Type>(type));
  });
}

inline std::string Trainer(bool byte_fallback) {
  return ModelPart([&](auto& model) {
    model.mutable_trainer_spec()->set_model_type(sentencepiece::TrainerSpec::BPE);
    model.mutable_trainer_spec()->set_byte_fallback(byte_fallback);
  });
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
    out += PieceField(absl::StrFormat("<0x%02X>", i), PieceType::kByte);
  }
  return out;
}

inline std::string UnkSurface(const std::string& text) {
  return ModelPart([&](auto& model) { model.mutable_trainer_spec()->set_unk_surface(text); });
}

inline std::string CharsMapField(const std::string& map) {
  return ModelPart(
      [&](auto& model) { model.mutable_normalizer_spec()->set_precompiled_charsmap(map); });
}

inline std::string Spaces(bool add_dummy_prefix, bool remove_extra_whitespaces) {
  return ModelPart([&](auto& model) {
    model.mutable_normalizer_spec()->set_add_dummy_prefix(add_dummy_prefix);
    model.mutable_normalizer_spec()->set_remove_extra_whitespaces(remove_extra_whitespaces);
  });
}

}  // namespace fox
