// LongCrawl64Tokenizer: GPT-2's BPE over the inside of a JSON string, as the released FoX models
// were trained (JSONGPT2Tokenizer). Encoding escapes the text first; decoding leaves escapes in
// TokenBytes and marks them with Info::json_escaped. Read token_stream.h next: it undoes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

class LongCrawl64Tokenizer : public Tokenizer {
 public:
  // As ByteLevelBpe::Create. Added tokens must be plain ASCII that JSON does not escape: then it
  // makes no difference whether they are found before or after escaping.
  static absl::StatusOr<std::unique_ptr<LongCrawl64Tokenizer>> Create(
      const BpeDefinition& definition, int64_t model_vocab_size);

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  std::string TokenBytes(int32_t id, bool skip_special) const override;
  const Info& info() const override { return info_; }

 private:
  explicit LongCrawl64Tokenizer(std::unique_ptr<ByteLevelBpe> bpe);

  std::unique_ptr<ByteLevelBpe> bpe_;
  Info info_;
};

}  // namespace fox
