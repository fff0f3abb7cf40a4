// LoadTokenizer: the files in the directory decide which tokenizer it is. See tokenizer.h.
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "models/model_dir.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/gpt2_files.h"
#include "models/tokenizer/longcrawl64_tokenizer.h"
#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/tokenizer_config.h"
#include "models/tokenizer/tokenizer_json.h"

namespace fox {
namespace {

using TokenizerOr = absl::StatusOr<std::unique_ptr<Tokenizer>>;

// StatusOr of a derived class does not convert by itself.
template <typename T>
TokenizerOr AsTokenizer(absl::StatusOr<std::unique_ptr<T>> tokenizer) {
  if (!tokenizer.ok()) return tokenizer.status();
  return std::unique_ptr<Tokenizer>(*std::move(tokenizer));
}

constexpr size_t kMaxFileBytes = size_t{64} << 20;

// The content of a file; nothing when it is not there.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const ModelDir& dir,
                                                       const std::string& name) {
  if (!dir.Contains(name)) return std::nullopt;
  absl::StatusOr<std::string> content = dir.ReadText(name, kMaxFileBytes);
  if (!content.ok()) return content.status();
  return *std::move(content);
}

absl::StatusOr<TokenizerConfig> ReadConfig(const ModelDir& dir) {
  const auto tokenizer_config = ReadIfThere(dir, "tokenizer_config.json");
  if (!tokenizer_config.ok()) return tokenizer_config.status();
  const auto special_tokens_map = ReadIfThere(dir, "special_tokens_map.json");
  if (!special_tokens_map.ok()) return special_tokens_map.status();
  const auto added_tokens = ReadIfThere(dir, "added_tokens.json");
  if (!added_tokens.ok()) return added_tokens.status();
  return ParseTokenizerConfig(tokenizer_config->value_or(""), special_tokens_map->value_or(""),
                              added_tokens->value_or(""));
}

TokenizerOr MakeBpe(const absl::StatusOr<BpeDefinition>& definition, bool longcrawl64,
                    int64_t model_vocab_size) {
  if (!definition.ok()) return definition.status();
  if (longcrawl64) {
    return AsTokenizer(LongCrawl64Tokenizer::Create(*definition, model_vocab_size));
  }
  return AsTokenizer(ByteLevelBpe::Create(*definition, model_vocab_size));
}

}  // namespace

TokenizerOr LoadTokenizer(const std::string& dir, int64_t model_vocab_size) {
  const absl::StatusOr<ModelDir> files = ModelDir::Open(dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<TokenizerConfig> config = ReadConfig(*files);
  if (!config.ok()) return config.status();
  const bool longcrawl64 = config->tokenizer_class == "JSONGPT2Tokenizer";

  const auto sentencepiece = ReadIfThere(*files, "tokenizer.model");
  if (!sentencepiece.ok()) return sentencepiece.status();
  if (sentencepiece->has_value()) {
    return AsTokenizer(SentencePieceTokenizer::Create(
        **sentencepiece, config->add_bos_token.value_or(true), model_vocab_size));
  }
  const auto tokenizer_json = ReadIfThere(*files, "tokenizer.json");
  if (!tokenizer_json.ok()) return tokenizer_json.status();
  if (tokenizer_json->has_value()) {
    return MakeBpe(ParseTokenizerJson(**tokenizer_json, *config), longcrawl64, model_vocab_size);
  }
  const auto vocab = ReadIfThere(*files, "vocab.json");
  if (!vocab.ok()) return vocab.status();
  const auto merges = ReadIfThere(*files, "merges.txt");
  if (!merges.ok()) return merges.status();
  if (!vocab->has_value() && !merges->has_value()) return std::unique_ptr<Tokenizer>();
  if (!vocab->has_value() || !merges->has_value()) {
    return absl::InvalidArgumentError("vocab.json and merges.txt need each other");
  }
  return MakeBpe(ParseGpt2Files(**vocab, **merges, *config), longcrawl64, model_vocab_size);
}

}  // namespace fox
