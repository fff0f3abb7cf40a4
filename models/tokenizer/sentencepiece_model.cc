// The only translation unit that includes sentencepiece; no Abseil here. See sentencepiece_model.h.
#include "models/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <utility>

namespace fox {

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library)
    : library_(std::move(library)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Parse(const std::string& serialized,
                                                              std::string* error) {
  auto library = std::make_unique<Library>();
  try {  // the double-array builder throws
    const auto status = library->processor.LoadFromSerializedProto(serialized);
    if (!status.ok()) {
      *error = status.message();
      return nullptr;
    }
  } catch (const std::exception& e) {
    *error = e.what();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(library)));
}

bool SentencePieceModel::Normalize(std::string_view text, std::string* normalized,
                                   std::string* error) const {
  const auto status = library_->processor.Normalize(text, normalized);
  if (!status.ok()) *error = status.message();
  return status.ok();
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<WindowToken>* tokens,
                                std::string* error) const {
  sentencepiece::ImmutableSentencePieceText pieces;
  const auto status = library_->processor.Encode(text, pieces.mutable_proto());
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
