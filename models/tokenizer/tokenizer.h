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

  // The bytes of a token within a text; not necessarily whole UTF-8. Empty for special tokens if
  // `skip_special`, and for ids without a token: models pad their vocabulary.
  virtual std::string TokenBytes(int32_t id, bool skip_special) const = 0;
  // True if EncodeAsText never returns this token. REQUIRES: 0 <= id < info().vocab_size.
  virtual bool IsAdded(int32_t /*id*/) const { return false; }

  // How the bytes of a token join the text before them.
  enum class TokenKind {
    kBytes,  // may hold a part of a character, which the kBytes tokens next to it complete
    kText,   // whole characters; a character that bytes before it left incomplete is ill-formed
    kWord,   // kText that begins with the space between two words
  };
  virtual TokenKind KindOf(int32_t /*id*/) const { return TokenKind::kBytes; }

  struct Info {
    std::string kind;  // "sentencepiece", "byte_level_bpe", "byte_fallback_bpe", "longcrawl64"
    int32_t vocab_size = 0;
    std::optional<int32_t> bos_id, eos_id, unk_id;
    std::vector<int32_t> prefix;  // tokens that add_special_tokens puts before a text
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
  virtual const Info& info() const = 0;
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
