// TextTokens: splits and wraps documents.
#include "engine/eval/text_tokens.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/eval/eval_command.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {
namespace {

std::optional<int32_t> EosOf(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.info().eos_id) return tokenizer.info().eos_id;
  if (!config.eos_token_ids.empty()) return config.eos_token_ids.front();
  return std::nullopt;
}

}  // namespace

absl::StatusOr<TextTokens> EncodeTextFile(const std::string& model_dir, const ModelConfig& config,
                                          const std::string& path, int64_t enough) {
  const auto text = ReadFile(path);
  if (!text.ok()) return text.status();
  const auto tokenizer = LoadTokenizer(model_dir, config.vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  if (*tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(model_dir, " holds no tokenizer"));
  }
  const auto bos = (*tokenizer)->info().bos_id ? (*tokenizer)->info().bos_id : config.bos_token_id;
  const auto eos = EosOf(**tokenizer, config);
  const std::string separator("\n\0\n", 3);
  TextTokens tokens;
  for (size_t begin = 0; begin <= text->size();) {
    if (enough >= 0 && static_cast<int64_t>(tokens.ids.size()) >= enough) break;
    const size_t end = std::min(text->find(separator, begin), text->size());
    const std::string document = text->substr(begin, end - begin);
    begin = end + separator.size();
    if (document.empty()) continue;
    const auto ids = (*tokenizer)->Encode(document, false);
    if (!ids.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ", document ", tokens.documents, ": ",
                                                     std::string(ids.status().message())));
    }
    if (bos) tokens.ids.push_back(*bos);
    tokens.ids.insert(tokens.ids.end(), ids->begin(), ids->end());
    if (eos) tokens.ids.push_back(*eos);
    tokens.bytes += static_cast<int64_t>(document.size());
    ++tokens.documents;
  }
  return tokens;
}

}  // namespace fox
