// Keys of generation_config.json by type. See generation_config.h.
#include "models/checkpoint/generation_config.h"

#include <limits>

#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"

namespace fox {
namespace {

constexpr const char* kFile = "generation_config.json";
constexpr JsonLimits kLimits{
    .max_bytes = 1 << 20, .max_depth = 64, .max_values = 1 << 16, .python_numbers = true};

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(const std::string& json) {
  const auto object = ReadJsonObject(json, kLimits, kFile);
  if (!object.ok()) return object.status();
  constexpr auto kLow = std::numeric_limits<int64_t>::min();
  constexpr auto kHigh = std::numeric_limits<int64_t>::max();
  KeyReader keys(*object, kFile);
  GenerationConfig out;
  out.temperature = keys.OptionalNumber("temperature");
  out.top_p = keys.OptionalNumber("top_p");
  out.min_p = keys.OptionalNumber("min_p");
  out.repetition_penalty = keys.OptionalNumber("repetition_penalty");
  out.top_k = keys.OptionalInteger("top_k", kLow, kHigh);
  out.max_new_tokens = keys.OptionalInteger("max_new_tokens", kLow, kHigh);
  out.eos_token_ids = keys.Integers("eos_token_id", kLow, kHigh);
  if (!keys.status().ok()) return keys.status();
  return out;
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& dir) {
  const absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  if (!model_dir->Contains(kFile)) return GenerationConfig{};
  const absl::StatusOr<std::string> text = model_dir->ReadText(kFile, kLimits.max_bytes);
  if (!text.ok()) return text.status();
  return ParseGenerationConfig(*text);
}

}  // namespace fox
