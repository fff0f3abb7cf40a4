// SentencePieceProcessor::Encode and Decode, with every failure fatal. See sentencepiece_library.h.
#include "tests/models/tokenizer/sentencepiece_library.h"

#include <sentencepiece_processor.h>

#include <cstdio>
#include <cstdlib>

namespace fox {
namespace {

void CheckOk(const sentencepiece::util::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "sentencepiece: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

struct SentencePieceLibrary::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceLibrary::SentencePieceLibrary(const std::string& serialized)
    : processor_(std::make_unique<Processor>()) {
  CheckOk(processor_->library.LoadFromSerializedProto(serialized));
}

SentencePieceLibrary::~SentencePieceLibrary() = default;

std::vector<int32_t> SentencePieceLibrary::Encode(const std::string& text) const {
  std::vector<int32_t> ids;
  CheckOk(processor_->library.Encode(text, &ids));
  return ids;
}

std::string SentencePieceLibrary::Decode(const std::vector<int32_t>& ids) const {
  std::string text;
  CheckOk(processor_->library.Decode(ids, &text));
  return text;
}

}  // namespace fox
