// Tokenizer: text to token ids and back. Implementations: sentencepiece_tokenizer and
// byte_level_bpe; load_tokenizer picks one from a model directory.
// Read token_stream.h next: the incremental way back, for streaming.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/utf8.h"

namespace fox {

// Immutable after construction; all methods may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of `text` (valid UTF-8; InvalidArgument otherwise). `add_special_tokens` adds the tokens
  // that the model expects around a text, as bos. Cost O(n log n) in the length of the text.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                                      bool add_special_tokens) const = 0;

  // Ids of text from outside that stands between control tokens, as in a chat. Adds no special
  // tokens and recognises no added tokens, special or not, in `text`: <|im_end|> is read as the
  // letters that spell it. Only added tokens of mere white space keep their ids. `at_text_start`:
  // no token precedes the text.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeAsText(const std::string& text,
                                                            bool /*at_text_start*/) const {
    return Encode(text, false);
  }

  // How the bytes of a token join the text before them.
  enum class TokenKind {
    kBytes,  // may hold a part of a character, which the kBytes tokens next to it complete
    kText,   // whole characters; a character that bytes before it left incomplete is ill-formed
    kWord,   // kText that begins with the space between two words
  };
  TokenKind KindOf(int32_t id) const { return Has(id) ? TokenOf(id).kind : padding_kind_; }
  // The bytes of a token within a text; not necessarily whole UTF-8. Empty for special tokens if
  // `skip_special`, and for ids without a token: models pad their vocabulary.
  std::string TokenBytes(int32_t id, bool skip_special) const {
    return !Has(id) || (skip_special && TokenOf(id).special) ? "" : TokenOf(id).bytes;
  }
  // True if EncodeAsText never returns this token. REQUIRES: 0 <= id < info().vocab_size.
  bool IsAdded(int32_t id) const { return TokenOf(id).added; }

  struct Info {
    std::string kind;  // "sentencepiece", "byte_level_bpe", "byte_fallback_bpe", "longcrawl64"
    int32_t vocab_size = 0;
    std::optional<int32_t> bos_id, eos_id, unk_id;
    std::vector<int32_t> prefix, suffix;  // tokens that add_special_tokens puts around a text
    // The model's text is JSON-escaped: token bytes form escapes such as \u00e9, which
    // TokenStream undoes.
    bool json_escaped = false;
    // At the start of a text the first kWord token loses its space.
    bool strip_leading_space = false;
    // Until there is text, every further kWord token loses it, too (models that collapse spaces).
    bool strip_all_leading_spaces = false;
    // How ill-formed UTF-8 becomes U+FFFD in decoded text.
    Utf8Replacement replacement = Utf8Replacement::kSubpart;
  };
  const Info& info() const { return info_; }

 protected:
  struct Token {
    std::string bytes = {};
    TokenKind kind = TokenKind::kBytes;
    bool special = false;  // dropped from decoded text on request
    bool added = false;    // recognised before text is encoded, and not mere white space
  };
  bool Has(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < tokens_.size(); }
  const Token& TokenOf(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  Token& TokenOf(int32_t id) { return tokens_[static_cast<size_t>(id)]; }
  // `ids` with the prefix and the suffix around them.
  std::vector<int32_t> WithSpecialTokens(std::vector<int32_t> ids) const {
    ids.insert(ids.begin(), info_.prefix.begin(), info_.prefix.end());
    ids.insert(ids.end(), info_.suffix.begin(), info_.suffix.end());
    return ids;
  }

  Info info_;
  std::vector<Token> tokens_;                   // by id: vocab_size of them
  TokenKind padding_kind_ = TokenKind::kBytes;  // of ids without a token
};

// The whole of `ids` as text, through a TokenStream; ill-formed UTF-8 becomes U+FFFD.
std::string Detokenize(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       bool skip_special);

// Loads the tokenizer in `dir`: tokenizer.json (BPE of bytes, or with fallback to them) if its kind
// is supported; else tokenizer.model (sentencepiece); else vocab.json and merges.txt (of the class
// in tokenizer_config.json; without one, of the model_type in config.json). Added tokens come from
// the tokenizer's own file, tokenizer_config.json, special_tokens_map.json and added_tokens.json;
// a token whose id is not below `model_vocab_size` is left out. Null: the directory holds no
// tokenizer. Errors (InvalidArgument, also for vocabularies larger than `model_vocab_size`;
// Unimplemented for other kinds of tokenizer) are one line that names the file, never an absolute
// path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir,
                                                         int64_t model_vocab_size);

}  // namespace fox
