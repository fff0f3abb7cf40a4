// SentencePieceModel: the sentencepiece library behind types of the standard library. Its own
// header redefines absl::string_view, so no file may include both it and Abseil; this wrapper is
// the only place that includes it. It trusts the model: sentencepiece_check.h looks at it first.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/bpe_windows.h"

namespace fox {

// Immutable; Normalize and Encode may be called from any thread.
class SentencePieceModel {
 public:
  // nullptr with `error` set when the library refuses the model.
  static std::unique_ptr<SentencePieceModel> Parse(const std::string& serialized,
                                                   std::string* error);
  ~SentencePieceModel();

  // The text as its pieces are looked for. False with `error` set when the library fails.
  bool Normalize(std::string_view text, std::string* normalized, std::string* error) const;

  // Appends the pieces of `text`, normalized by this model before anything else. An unknown piece
  // stands for a run of characters, whose end it has. False with `error` set when the library
  // fails.
  bool Encode(std::string_view text, std::vector<WindowToken>* tokens, std::string* error) const;

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace fox
