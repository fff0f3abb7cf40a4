// LoadTokenizer: the files in the directory decide which tokenizer it is. See tokenizer.h.
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "models/model_dir.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

// The files of a directory, with a sticky first error.
class Files {
 public:
  explicit Files(const ModelDir& dir) : dir_(dir) {}

  // The content; nothing when it is not there, or after an error.
  std::optional<std::string> Read(const std::string& name) {
    if (!status.ok() || !dir_.Contains(name)) return std::nullopt;
    absl::StatusOr<std::string> content = dir_.ReadText(name, kMaxFileBytes);
    if (content.ok()) return *std::move(content);
    status = content.status();
    return std::nullopt;
  }

  absl::Status status;

 private:
  const ModelDir& dir_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir,
                                                         int64_t model_vocab_size) {
  const absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  Files files(*model_dir);
  const auto tokenizer_config = files.Read("tokenizer_config.json");
  const auto special_tokens_map = files.Read("special_tokens_map.json");
  const auto added_tokens = files.Read(kAddedTokensFile);
  const auto sentencepiece = files.Read("tokenizer.model");
  const auto tokenizer_json = sentencepiece ? std::nullopt : files.Read("tokenizer.json");
  const bool gpt2 = !sentencepiece && !tokenizer_json;
  const auto vocab = gpt2 ? files.Read("vocab.json") : std::nullopt;
  const auto merges = gpt2 ? files.Read("merges.txt") : std::nullopt;
  if (!files.status.ok()) return files.status;
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(
      tokenizer_config.value_or(""), special_tokens_map.value_or(""), added_tokens.value_or(""));
  if (!config.ok()) return config.status();
  if (sentencepiece) {
    return SentencePieceTokenizer::Create(*sentencepiece, config->add_bos_token.value_or(true),
                                          model_vocab_size);
  }
  if (gpt2 && !vocab && !merges) return std::unique_ptr<Tokenizer>();
  if (gpt2 && !(vocab && merges)) {
    return absl::InvalidArgumentError("vocab.json and merges.txt need each other");
  }
  absl::StatusOr<BpeDefinition> definition = gpt2 ? ParseGpt2Files(*vocab, *merges, *config)
                                                  : ParseTokenizerJson(*tokenizer_json, *config);
  if (!definition.ok()) return definition.status();
  definition->json_escaped = config->tokenizer_class == "JSONGPT2Tokenizer";
  return ByteLevelBpe::Create(*definition, model_vocab_size);
}

}  // namespace fox
