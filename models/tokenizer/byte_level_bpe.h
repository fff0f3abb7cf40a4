// ByteLevelBpe: GPT-2's tokenizer. Text is cut at added tokens, then by the pre-tokenizer, and the
// bytes of each piece are merged by rank, those of a long one window by window. Its definition
// comes from gpt2_files.h (vocab.json and merges.txt) or tokenizer_json.h; Create checks it, so
// that any accepted definition is safe to use. Read bpe_merger.h and bpe_windows.h next.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe_merger.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

// A byte-level BPE tokenizer as its files define it. Tokens are in the byte alphabet
// (byte_alphabet.h). Errors open with the name of the file at fault.
struct BpeDefinition {
  const char* vocab_file = "";
  const char* merges_file = "";
  absl::flat_hash_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added;                            // may repeat tokens of `vocab`
  bool add_prefix_space = false;            // a space before each text that does not start with one
  bool use_regex = true;                    // false: no pre-tokenizer, a text is one piece
  bool ignore_merges = false;               // a piece that is a token as a whole is not merged
  std::vector<int32_t> prefix, suffix;      // what add_special_tokens puts around a text
  std::optional<AddedToken> bos, eos, unk;  // their ids are not read
};

class ByteLevelBpe : public Tokenizer {
 public:
  // InvalidArgument: a token id twice, missing or not below `model_vocab_size`, a byte without
  // token, a merge of or into an unknown token, an unknown special token. The message names the
  // file.
  static absl::StatusOr<std::unique_ptr<ByteLevelBpe>> Create(const BpeDefinition& definition,
                                                              int64_t model_vocab_size);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  std::string TokenBytes(int32_t id, bool skip_special) const override;
  const Info& info() const override { return info_; }

 private:
  ByteLevelBpe() = default;

  absl::Status SetTokens(const BpeDefinition& definition, int64_t model_vocab_size);
  absl::Status SetBytes(const BpeDefinition& definition);
  absl::Status SetMerges(const BpeDefinition& definition);
  absl::Status SetSpecial(const BpeDefinition& definition);
  absl::Status SetRoles(const BpeDefinition& definition);
  // Encodes text[begin, end), which holds no added token.
  void EncodePart(const std::string& text, size_t begin, size_t end,
                  BpeMerger::Workspace* workspace, std::vector<int32_t>* ids) const;
  void EncodePretoken(std::string_view pretoken, BpeMerger::Workspace* workspace,
                      std::vector<int32_t>* ids) const;
  void Merge(std::string_view bytes, BpeMerger::Workspace* workspace,
             std::vector<int32_t>* ids) const;

  Info info_;
  std::vector<std::string> bytes_;  // by id
  std::vector<bool> special_;       // by id
  std::array<int32_t, 256> id_of_byte_ = {};
  absl::flat_hash_map<std::string, int32_t> id_of_bytes_;  // only with ignore_merges
  BpeMerger merger_;
  AddedTokenSplitter splitter_;
  bool add_prefix_space_ = false;
  bool use_regex_ = true;
  std::vector<int32_t> suffix_;
};

}  // namespace fox
