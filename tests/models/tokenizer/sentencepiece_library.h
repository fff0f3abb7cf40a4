// The sentencepiece library's own encoding and decoding, for comparison. Types of the standard
// library only: see sentencepiece_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fox {

class SentencePieceLibrary {
 public:
  // Aborts if the library refuses the model.
  explicit SentencePieceLibrary(const std::string& serialized);
  ~SentencePieceLibrary();

  std::vector<int32_t> Encode(const std::string& text) const;
  // REQUIRES: every id is a piece's.
  std::string Decode(const std::vector<int32_t>& ids) const;

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

}  // namespace fox
