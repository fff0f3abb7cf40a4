// Escaping around ByteLevelBpe. See longcrawl64_tokenizer.h.
#include "models/tokenizer/longcrawl64_tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/error_text.h"
#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/utf8.h"

namespace fox {

absl::StatusOr<std::unique_ptr<LongCrawl64Tokenizer>> LongCrawl64Tokenizer::Create(
    const BpeDefinition& definition, int64_t model_vocab_size) {
  for (const AddedToken& token : definition.added) {
    if (JsonEscape(token.content) != token.content || token.lstrip || token.rstrip) {
      return absl::UnimplementedError(absl::StrCat(
          token.file, ": JSONGPT2Tokenizer with the added token ", Quoted(token.content)));
    }
  }
  absl::StatusOr<std::unique_ptr<ByteLevelBpe>> bpe =
      ByteLevelBpe::Create(definition, model_vocab_size);
  if (!bpe.ok()) return bpe.status();
  return std::unique_ptr<LongCrawl64Tokenizer>(new LongCrawl64Tokenizer(*std::move(bpe)));
}

LongCrawl64Tokenizer::LongCrawl64Tokenizer(std::unique_ptr<ByteLevelBpe> bpe)
    : bpe_(std::move(bpe)), info_(bpe_->info()) {
  info_.kind = "longcrawl64";
  info_.json_escaped = true;
}

absl::StatusOr<std::vector<int32_t>> LongCrawl64Tokenizer::Encode(const std::string& text,
                                                                  bool add_special_tokens) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("text is not valid UTF-8");
  return bpe_->Encode(JsonEscape(text), add_special_tokens);
}

std::string LongCrawl64Tokenizer::TokenBytes(int32_t id, bool skip_special) const {
  return bpe_->TokenBytes(id, skip_special);
}

}  // namespace fox
