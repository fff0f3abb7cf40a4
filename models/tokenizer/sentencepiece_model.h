// SentencePieceModel: the sentencepiece library behind types of the standard library. Its own
// header redefines absl::string_view, so no file may include both it and Abseil; this wrapper is
// the only place that includes it. REQUIRES: sentencepiece_check.h has accepted the model.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/bpe_windows.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace fox {

// Immutable; Normalize and Encode may be called from any thread.
class SentencePieceModel {
 public:
  // Null, with `error` set, if the library refuses the model.
  static std::unique_ptr<SentencePieceModel> Parse(const std::string& serialized,
                                                   std::string* error);
  ~SentencePieceModel();

  // Writes the text in which pieces are searched to `normalized`. False, with `error` set, if the
  // library fails.
  bool Normalize(std::string_view text, std::string* normalized, std::string* error) const;

  // Normalizes `text` and appends its pieces. An unknown piece stands for a run of characters and
  // has the end of the run. False, with `error` set, if the library fails.
  bool Encode(std::string_view text, std::vector<WindowToken>* tokens, std::string* error) const;

 private:
  SentencePieceModel();
  const std::unique_ptr<sentencepiece::SentencePieceProcessor> library_;
};

}  // namespace fox
