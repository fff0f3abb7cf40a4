// Keys of generation_config.json by type. See generation_config.h.
#include "models/generation_config.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/json_reader.h"
#include "models/model_dir.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr const char* kFile = "generation_config.json";
constexpr JsonLimits kLimits{.max_bytes = 1 << 20, .max_depth = 64, .max_values = 1 << 16};

absl::Status Invalid(const char* key, const char* problem) {
  return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", key, " ", problem));
}

// The value of `key`; null when absent or null.
const Json* Find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status ReadNumber(const Json& object, const char* key, std::optional<double>* out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return Invalid(key, "is not a number");
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> IntegerOf(const char* key, const Json& value) {
  if (!value.is_number_integer()) return Invalid(key, "is not an integer");
  // An unsigned value above int64 must not wrap.
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Invalid(key, "is too large");
  }
  return value.get<int64_t>();
}

absl::Status ReadInteger(const Json& object, const char* key, std::optional<int64_t>* out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  const absl::StatusOr<int64_t> integer = IntegerOf(key, *value);
  if (!integer.ok()) return integer.status();
  *out = *integer;
  return absl::OkStatus();
}

absl::Status ReadIntegers(const Json& object, const char* key, std::vector<int64_t>* out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& entry : list) {
    const absl::StatusOr<int64_t> integer = IntegerOf(key, entry);
    if (!integer.ok()) return integer.status();
    out->push_back(*integer);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(const std::string& json) {
  const absl::StatusOr<Json> object = ReadJson(json, kLimits, kFile);
  if (!object.ok()) return object.status();
  if (!object->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, ": is not a JSON object"));
  }
  GenerationConfig out;
  absl::Status status = ReadNumber(*object, "temperature", &out.temperature);
  status.Update(ReadNumber(*object, "top_p", &out.top_p));
  status.Update(ReadNumber(*object, "min_p", &out.min_p));
  status.Update(ReadNumber(*object, "repetition_penalty", &out.repetition_penalty));
  status.Update(ReadInteger(*object, "top_k", &out.top_k));
  status.Update(ReadInteger(*object, "max_new_tokens", &out.max_new_tokens));
  status.Update(ReadIntegers(*object, "eos_token_id", &out.eos_token_ids));
  if (!status.ok()) return status;
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
