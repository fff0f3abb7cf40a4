// The only translation unit that includes sentencepiece; no Abseil here. See sentencepiece_model.h.
#include "models/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <exception>

namespace fox {

SentencePieceModel::SentencePieceModel()
    : library_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Parse(const std::string& serialized,
                                                              std::string* error) {
  std::unique_ptr<SentencePieceModel> model(new SentencePieceModel());
  try {  // the double-array builder throws
    const auto status = model->library_->LoadFromSerializedProto(serialized);
    if (status.ok()) return model;
    *error = status.message();
  } catch (const std::exception& e) {
    *error = e.what();
  }
  return nullptr;
}

bool SentencePieceModel::Normalize(std::string_view text, std::string* normalized,
                                   std::string* error) const {
  const auto status = library_->Normalize(text, normalized);
  if (!status.ok()) *error = status.message();
  return status.ok();
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<WindowToken>* tokens,
                                std::string* error) const {
  sentencepiece::ImmutableSentencePieceText pieces;
  const auto status = library_->Encode(text, pieces.mutable_proto());
  if (!status.ok()) {
    *error = status.message();
    return false;
  }
  const auto size = static_cast<int>(pieces.pieces_size());
  for (int i = 0; i < size; ++i) {
    const auto piece = pieces.pieces(i);
    tokens->push_back({static_cast<int32_t>(piece.id()), piece.end()});
  }
  return true;
}

}  // namespace fox
