// ByteLevelBpe: GPT-2's tokenizer. Text is cut at added tokens, then by the pre-tokenizer, and the
// bytes of each piece are merged by rank; a long piece is merged window by window. With
// byte_fallback (LLaMA-2) the characters of a piece are merged, and a character without a token is
// spelled by its bytes. Create checks the definition, so that every accepted one is safe to use.
// With `json_escaped` encoding escapes the text first; decoding leaves escapes in TokenBytes, which
// TokenStream undoes. Read bpe_merger.h and bpe_windows.h next.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/bpe_merger.h"
#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

class ByteLevelBpe : public Tokenizer {
 public:
  // InvalidArgument: a token id twice or not below `model_vocab_size`; a byte without token; a
  // merge whose parts or product are unknown or are byte tokens of byte_fallback; an unknown token
  // around a text. Unimplemented: a pattern that is not understood; with `json_escaped`, an added
  // token that JSON escapes or that swallows space. The message names the file.
  static absl::StatusOr<std::unique_ptr<ByteLevelBpe>> Create(const BpeDefinition& definition,
                                                              int64_t model_vocab_size);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& given,
                                              bool add_special_tokens) const override;
  absl::StatusOr<std::vector<int32_t>> EncodeAsText(const std::string& given,
                                                    bool at_text_start) const override;

 private:
  ByteLevelBpe() = default;

  absl::Status SetTokens(const BpeDefinition& definition, int64_t model_vocab_size);
  absl::Status SetBytes(const BpeDefinition& definition);
  absl::Status SetMerges(const BpeDefinition& definition);
  absl::Status SetSpecial(const BpeDefinition& definition);
  absl::StatusOr<std::vector<int32_t>> EncodeAround(const AddedTokenSplitter& splitter,
                                                    const std::string& given,
                                                    bool at_text_start) const;
  void EncodePretoken(std::string_view pretoken, BpeMerger::Workspace* workspace,
                      std::vector<int32_t>* ids) const;
  std::string WithTokens(std::string_view text) const;
  void AppendSymbols(std::string_view text, std::vector<int32_t>* symbols) const;
  void Merge(std::string_view text, BpeMerger::Workspace* workspace,
             std::vector<int32_t>* ids) const;

  std::vector<uint32_t> width_;  // by id: bytes of pre-tokenized text that it stands for
  static constexpr int32_t kNoToken = -1;
  std::array<int32_t, 256> id_of_byte_ = {};
  bool knows_bytes_ = true;  // every byte has a token
  bool byte_fallback_ = false;
  absl::flat_hash_map<uint32_t, int32_t> id_of_character_;  // only with byte_fallback
  BpeDefinition::Metaspace metaspace_ = BpeDefinition::Metaspace::kAsIs;
  absl::flat_hash_map<std::string, int32_t> id_of_bytes_;  // only with ignore_merges
  BpeMerger merger_;
  AddedTokenSplitter splitter_;  // all added tokens
  AddedTokenSplitter spaces_;    // added tokens of mere white space
  Pretokenizer pretokenizer_;
};

}  // namespace fox
