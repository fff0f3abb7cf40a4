// SentencePieceTokenizer: a sentencepiece model, checked before the library sees it. Encoding is
// the library's; decoding, token by token in a TokenStream, is our own and equal to the library's
// for any ids (control pieces skipped). Read sentencepiece_check.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `serialized`: the bytes of a tokenizer.model. With `add_bos`, bos is what add_special_tokens
  // puts in front, if the model has one. InvalidArgument, Unimplemented: see
  // CheckSentencePieceModel; also more pieces than `model_vocab_size`. Longer texts than
  // `window_bytes` are encoded window by window (bpe_windows.h), if the model allows it.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(
      const std::string& serialized, bool add_bos, int64_t model_vocab_size,
      size_t window_bytes = kWindowBytes);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  absl::StatusOr<std::vector<int32_t>> EncodeAsText(const std::string& text,
                                                    bool at_text_start) const override;
  std::string TokenBytes(int32_t id, bool skip_special) const override;
  TokenKind KindOf(int32_t id) const override;
  bool IsAdded(int32_t id) const override {
    const Token& token = tokens_[static_cast<size_t>(id)];
    return token.control || !token.user_defined.empty();
  }
  const Info& info() const override { return info_; }

 private:
  SentencePieceTokenizer() = default;

  struct Token {
    std::string bytes;
    TokenKind kind = TokenKind::kText;
    bool control = false;
    std::string user_defined = "";  // the piece, if it is one and not mere white space
  };
  static Token TokenOf(const Piece& piece, const std::string& unk_surface);
  // As the pieces are written.
  bool Normalize(const std::string& text, std::string* normalized, std::string* error) const;
  // Appends the pieces of a normalized text, an unknown one for each unknown character.
  bool EncodeNormalized(std::string_view text, std::vector<WindowToken>* tokens,
                        std::string* error) const;

  Info info_;
  std::vector<Token> tokens_;                       // by id
  std::unique_ptr<SentencePieceModel> model_;       // for normalized texts
  std::unique_ptr<SentencePieceModel> normalizer_;  // null: it only marks spaces
  bool add_dummy_prefix_ = true;
  size_t window_bytes_ = kWindowBytes;
  std::optional<size_t> lookahead_;  // none: a text is one window
};

}  // namespace fox
