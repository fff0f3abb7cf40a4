// LoadTokenizer: the files in the directory decide which tokenizer it is. See tokenizer.h.
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/json_fields.h"
#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

// Reads files of a directory. The first error is kept.
class Files {
 public:
  explicit Files(const ModelDir& dir) : dir_(dir) {}

  // The content of a file; no value if it does not exist, or after an error.
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

// The tokenizer's class by the model_type of config.json; "": GPT-2's.
std::string ClassOfModel(const std::string& config_json) {
  constexpr JsonLimits kConfigLimits = {kMaxFileBytes, 32, 1'000'000};
  const absl::StatusOr<nlohmann::json> config =
      ReadJsonObject(config_json, kConfigLimits, "config.json");
  if (!config.ok()) return "";
  const std::string model_type = ReadString(&*config, "model_type").value_or("");
  return model_type == "qwen2" || model_type == "qwen3" ? "Qwen2Tokenizer" : "";
}

// Reads vocab.json and merges.txt; no value if neither exists.
absl::StatusOr<std::optional<BpeDefinition>> ReadPair(TokenizerConfig config, Files* files) {
  const auto vocab = files->Read("vocab.json");
  const auto merges = files->Read("merges.txt");
  if (config.tokenizer_class.empty()) {
    config.tokenizer_class = ClassOfModel(files->Read("config.json").value_or(""));
  }
  if (!files->status.ok()) return files->status;
  if (!vocab && !merges) return std::nullopt;
  if (!(vocab && merges)) {
    return absl::InvalidArgumentError("vocab.json and merges.txt need each other");
  }
  return ParseGpt2Files(*vocab, *merges, config);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir,
                                                         int64_t model_vocab_size) {
  const absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  Files files(*model_dir);
  const auto tokenizer_config = files.Read("tokenizer_config.json");
  const auto special_tokens_map = files.Read("special_tokens_map.json");
  const auto added_tokens = files.Read("added_tokens.json");
  const auto tokenizer_json = files.Read("tokenizer.json");
  if (!files.status.ok()) return files.status;
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(
      tokenizer_config.value_or(""), special_tokens_map.value_or(""), added_tokens.value_or(""));
  if (!config.ok()) return config.status();
  absl::StatusOr<std::optional<BpeDefinition>> definition = std::nullopt;
  if (tokenizer_json) definition = ParseTokenizerJson(*tokenizer_json, *config);
  // A tokenizer.json of another kind, as of a unigram model, was made from a tokenizer.model.
  if (!tokenizer_json || absl::IsUnimplemented(definition.status())) {
    const auto sentencepiece = files.Read("tokenizer.model");
    if (!files.status.ok()) return files.status;
    if (sentencepiece) {
      return SentencePieceTokenizer::Create(*sentencepiece, *config, model_vocab_size);
    }
  }
  if (!tokenizer_json) definition = ReadPair(*config, &files);
  if (!definition.ok()) return definition.status();
  if (!definition->has_value()) return std::unique_ptr<Tokenizer>();
  BpeDefinition& bpe = **definition;
  bpe.json_escaped = config->tokenizer_class == "JSONGPT2Tokenizer";
  // The model has no embedding for tokens beyond its vocabulary: they are text.
  std::erase_if(bpe.added, [=](const AddedToken& token) { return token.id >= model_vocab_size; });
  for (auto* role : {&bpe.bos_id, &bpe.eos_id, &bpe.unk_id}) {
    if (role->value_or(0) >= model_vocab_size) role->reset();
  }
  return ByteLevelBpe::Create(bpe, model_vocab_size);
}

}  // namespace fox
