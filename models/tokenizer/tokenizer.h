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

  // Ids of `text` (valid UTF-8; InvalidArgument otherwise). With `add_special_tokens`, what the
  // model expects in front (bos) is added. Cost O(n log n) in the length of the text.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                                      bool add_special_tokens) const = 0;

  // The same without special tokens, of text from outside that stands between control tokens, as
  // in a chat: added tokens in `text` are read as the letters that spell them, <|im_end|> too, and
  // whether the files call them special or not. Only those of mere white space keep their ids.
  // `at_text_start`: no token precedes it.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeAsText(const std::string& text,
                                                            bool /*at_text_start*/) const {
    return Encode(text, false);
  }

  // Bytes of one token as they stand in a running text; not necessarily whole UTF-8. Special tokens
  // give "" when `skip_special`. Ids without a token give "": models pad their vocabulary.
  virtual std::string TokenBytes(int32_t id, bool skip_special) const = 0;
  // True of a token that EncodeAsText never gives; `id` is less than the vocabulary's size.
  virtual bool IsAdded(int32_t /*id*/) const { return false; }

  // How the bytes of a token join the text before them.
  enum class TokenKind {
    kBytes,  // may hold a part of a character, which the kBytes tokens next to it complete
    kText,   // whole characters; a character that bytes before it left incomplete stays so
    kWord,   // kText that opens with the space between two words
  };
  virtual TokenKind KindOf(int32_t /*id*/) const { return TokenKind::kBytes; }

  struct Info {
    std::string kind;  // "sentencepiece", "byte_level_bpe", "byte_fallback_bpe", "longcrawl64"
    int32_t vocab_size = 0;
    std::optional<int32_t> bos_id, eos_id, unk_id;
    std::vector<int32_t> prefix;  // what add_special_tokens puts in front of a text
    // The model's text is JSON-escaped: token bytes form escapes such as \u00e9, which
    // TokenStream undoes.
    bool json_escaped = false;
    // At the start of a text the first kWord token loses its space.
    bool strip_leading_space = false;
    // So does every further one until there is text (models that collapse spaces).
    bool strip_all_leading_spaces = false;
    // What one U+FFFD stands for in decoded text.
    Utf8Replacement replacement = Utf8Replacement::kSubpart;
  };
  virtual const Info& info() const = 0;
};

// The whole of `ids` as text, through a TokenStream; ill-formed UTF-8 becomes U+FFFD.
std::string Detokenize(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       bool skip_special);

// Picks by the files in `dir`: tokenizer.json (BPE of bytes, or with fallback to them), if it is of
// a kind that is supported; tokenizer.model (sentencepiece); vocab.json + merges.txt (of the class
// in tokenizer_config.json; without one, of the model_type in config.json). Added tokens come from
// the tokenizer's own file, tokenizer_config.json, special_tokens_map.json and added_tokens.json;
// one whose id `model_vocab_size` does not hold is left out. nullptr: the directory holds no
// tokenizer. Errors (InvalidArgument, also for vocabularies larger than `model_vocab_size`;
// Unimplemented for other kinds of tokenizer) are one line that names the file, never an absolute
// path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir,
                                                         int64_t model_vocab_size);

}  // namespace fox
