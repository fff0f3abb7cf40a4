// SentencePieceTokenizer: a sentencepiece model, checked before the library sees it. Text is cut at
// added tokens, which the library does not know: control pieces, the unknown piece, and the tokens
// of the small files beside tokenizer.model. The library encodes the text between them. Decoding,
// token by token in a TokenStream, is done here and equals the library's for any ids of pieces
// (control pieces skipped). Read sentencepiece_check.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/tokenizer_config.h"

namespace fox {

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `serialized`: the bytes of a tokenizer.model. `config`: the files beside it. add_special_tokens
  // puts bos before a text unless add_bos_token is false, and eos behind it if add_eos_token is
  // true. If the model has add_dummy_prefix and add_prefix_space is not false, each text between
  // added tokens gets a space in front, as in transformers; if `legacy` is false, only the first
  // text, and only if no added token precedes it. Texts longer than `window_bytes` are encoded
  // window by window (bpe_windows.h) if the model allows it. InvalidArgument, Unimplemented: see
  // CheckSentencePieceModel; also InvalidArgument for more pieces than `model_vocab_size`.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(
      const std::string& serialized, const TokenizerConfig& config, int64_t model_vocab_size,
      size_t window_bytes = kWindowBytes);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  absl::StatusOr<std::vector<int32_t>> EncodeAsText(const std::string& text,
                                                    bool at_text_start) const override;

 private:
  SentencePieceTokenizer() { padding_kind_ = TokenKind::kText; }

  void AddPiece(const Piece& piece, const std::string& unk_surface);
  absl::Status SetAdded(const SentencePieceFile& file, const TokenizerConfig& config,
                        int64_t model_vocab_size);
  absl::StatusOr<std::vector<int32_t>> EncodeAround(const AddedTokenSplitter& splitter,
                                                    const std::string& text,
                                                    bool at_text_start) const;
  // Appends the ids of a text without added tokens; `prefix`: with a space in front.
  bool EncodeText(std::string_view text, bool prefix, std::vector<int32_t>* ids,
                  std::string* error) const;
  // Appends the ids of a text without added tokens that is already normalized.
  bool EncodeMarked(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;
  // Writes the text in which pieces are searched, as U+2581 for spaces, to `normalized`.
  bool Normalize(std::string_view text, bool prefix, std::string* normalized,
                 std::string* error) const;
  // Appends the pieces of a normalized text, an unknown one for each unknown character.
  bool EncodeNormalized(std::string_view text, std::vector<WindowToken>* tokens,
                        std::string* error) const;

  // By id: text in which the library recognises this piece before it merges; not white space.
  absl::flat_hash_map<int32_t, std::string> user_defined_;
  std::unique_ptr<SentencePieceModel> model_;       // for normalized texts
  std::unique_ptr<SentencePieceModel> normalizer_;  // null: it only marks spaces
  AddedTokenSplitter splitter_;                     // all added tokens
  AddedTokenSplitter spaces_;                       // added tokens of mere white space
  int32_t unk_piece_ = 0;
  bool add_dummy_prefix_ = true, prefix_each_ = true;
  bool marks_first_ = false;  // the splitters mark spaces: added tokens are searched in marked text
  std::string model_prefix_;  // text that normalizer_ puts in front
  size_t window_bytes_ = kWindowBytes;
  std::optional<size_t> lookahead_;  // no value: a text is one window
};

}  // namespace fox
