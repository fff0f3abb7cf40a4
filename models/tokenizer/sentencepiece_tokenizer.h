// SentencePieceTokenizer: a sentencepiece model, checked before the library sees it. Encoding is
// the library's, decoding token by token is our own, equal to the library's for valid UTF-8. Read
// sentencepiece_check.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `serialized`: the bytes of a tokenizer.model. With `add_bos`, bos is what add_special_tokens
  // puts in front, if the model has one.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(
      const std::string& serialized, bool add_bos, int64_t model_vocab_size);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  std::string TokenBytes(int32_t id, bool skip_special) const override;
  const Info& info() const override { return info_; }

 private:
  SentencePieceTokenizer() = default;

  struct Token {
    std::string bytes;
    bool control = false;
  };

  Info info_;
  bool add_bos_ = true;
  std::vector<Token> tokens_;  // by id
  std::unique_ptr<SentencePieceModel> model_;
};

}  // namespace fox
