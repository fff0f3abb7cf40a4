// Keys of generation_config.json and fox_gain.json by type. See generation_config.h.
#include "models/checkpoint/generation_config.h"

#include <limits>

#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"

namespace fox {
namespace {

constexpr const char* kFile = "generation_config.json";
constexpr const char* kGainFile = "fox_gain.json";
constexpr JsonLimits kLimits{
    .max_bytes = 1 << 20, .max_depth = 64, .max_values = 1 << 16, .python_numbers = true};

// The text of a file in `dir`, or no value if there is none.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& dir, const char* file) {
  const absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  if (!model_dir->Contains(file)) return std::nullopt;
  return model_dir->ReadText(file, kLimits.max_bytes);
}

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
  const auto text = ReadIfThere(dir, kFile);
  if (!text.ok()) return text.status();
  return text->has_value() ? ParseGenerationConfig(**text) : GenerationConfig{};
}

absl::StatusOr<std::optional<double>> LoadGain(const std::string& dir) {
  const auto text = ReadIfThere(dir, kGainFile);
  if (!text.ok()) return text.status();
  if (!text->has_value()) return std::nullopt;
  const auto object = ReadJsonObject(**text, kLimits, kGainFile);
  if (!object.ok()) return object.status();
  KeyReader keys(*object, kGainFile);
  const double gain = keys.Number("gain", 0);
  if (!(gain > 0)) keys.Invalid("gain", "must be a number above 0");
  if (!keys.status().ok()) return keys.status();
  return gain;
}

}  // namespace fox
