// BpeDefinition: a BPE tokenizer as its files define it: GPT-2's vocab.json and merges.txt, or a
// tokenizer.json. Read byte_level_bpe.h next: it checks a definition and encodes by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/tokenizer_config.h"

namespace fox {

inline constexpr char kVisibleSpace[] = "\xE2\x96\x81";  // U+2581, sentencepiece's space

// Tokens are written in the byte alphabet (byte_alphabet.h). With `byte_fallback`, which is
// sentencepiece's BPE as in LLaMA-2 and Gemma, they are text with kVisibleSpace, and <0x00> to
// <0xFF>, which spell a character without a token. Errors begin with the name of the file at fault.
struct BpeDefinition {
  // After added tokens are recognised, all spaces become visible, and some parts of a text get one
  // more in front unless they begin with a space: none, the first part, or every part. kAsIs: none
  // of this happens.
  enum class Metaspace { kAsIs, kNotInFront, kFirst, kAlways };
  const char* vocab_file = "";
  const char* merges_file = "";
  absl::flat_hash_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added;  // contents are distinct; may repeat tokens of `vocab`
  // The steps of the normalizer, in this order.
  bool nfc = false;
  bool visible_spaces = false;  // each space becomes kVisibleSpace
  bool prefix_space = false;    // one kVisibleSpace in front of the text
  std::vector<PretokenizerStep> pretokenizer = {{.pattern = kGpt2Pattern}};
  // Text is the inside of a JSON string, as in the training of the released FoX models
  // (JSONGPT2Tokenizer).
  bool json_escaped = false;
  bool drop_unknown_bytes = false;  // bytes without a token are left out instead of refused
  bool ignore_merges = false;       // a piece that is a token as a whole is not merged
  bool byte_fallback = false;
  Metaspace metaspace = Metaspace::kAsIs;
  bool strip_leading_space = false;     // decoding drops one space at the start of a text
  std::vector<int32_t> prefix, suffix;  // tokens that add_special_tokens puts around a text
  std::optional<int32_t> bos_id, eos_id, unk_id;
};

// Sets the added tokens to `list`, which has the tokens of the tokenizer's own file, and those of
// `config`, and the ids of the roles. add_bos_token and add_eos_token say whether bos and eos stand
// around a text; without a value prefix or suffix stay as the post_processor set them.
void SetAddedTokens(const TokenizerConfig& config, AddedTokenList list, BpeDefinition* definition);

// vocab.json: one object, token to id. merges.txt: a line for each rule, two tokens and a space
// between; lines that start with #version are skipped. The class in `config` decides how text is
// cut and normalized: GPT-2's, which is the default, or Qwen2's; Unimplemented for others. Special
// tokens that `config` does not name are <|endoftext|>, as in these classes. InvalidArgument names
// the file and the line or token.
absl::StatusOr<BpeDefinition> ParseGpt2Files(const std::string& vocab_json,
                                             const std::string& merges_txt, TokenizerConfig config);

// tokenizer.json of the Hugging Face tokenizers library. Understood: model BPE; normalizer NFC;
// pre_tokenizer ByteLevel, alone or in a Sequence after any of Split and Digits; decoder ByteLevel;
// post_processor ByteLevel or TemplateProcessing; added_tokens. With byte_fallback: normalizer
// Prepend and Replace of the visible space; pre_tokenizer none, Metaspace, Split, Digits; decoder
// Replace, ByteFallback, Fuse, Strip. `truncation` and `padding` are left to the caller and
// ignored. bos and eos come from `config`; the post_processor says whether they stand around a
// text, except for classes, as LlamaTokenizer, that read add_bos_token and add_eos_token.
// Unimplemented names an option that would change the result and is not understood; InvalidArgument
// names a malformed part.
absl::StatusOr<BpeDefinition> ParseTokenizerJson(const std::string& text,
                                                 const TokenizerConfig& config);

}  // namespace fox
