// SamplingDefaults: see sampling_defaults.h.
#include "server/sampling_defaults.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr const char* kFile = "generation_config.json";
constexpr uintmax_t kMaxFileBytes = 1 << 20;

absl::Status BadKey(const char* key, const char* expectation) {
  return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", key, " is not ", expectation));
}

// Reads a number in [low, high] (low itself excluded when `open`); absent or null keeps the target.
absl::Status ReadNumber(const Json& config, const char* key, double low, bool open, double high,
                        float* target) {
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return absl::OkStatus();
  const double value = it->is_number() ? it->get<double>() : -1e300;
  if (!(value >= low && value <= high) || (open && value == low)) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", key, " is not a number in ",
                                                   open ? "(" : "[", low, ", ", high, "]"));
  }
  *target = static_cast<float>(value);
  return absl::OkStatus();
}

absl::Status ReadCount(const Json& config, const char* key, uint32_t low, uint32_t* target) {
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return absl::OkStatus();
  const int64_t value = it->is_number_integer() ? it->get<int64_t>() : -1;
  if (value < low || value > INT32_MAX) return BadKey(key, "a whole number in range");
  *target = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadEos(const Json& config, int64_t vocab_size, std::vector<int32_t>* target) {
  auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return absl::OkStatus();
  const Json list = it->is_array() ? *it : Json::array({*it});
  if (list.size() > 64) return BadKey("eos_token_id", "a list of at most 64 ids");
  for (const Json& id : list) {
    const int64_t value = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (value < 0 || value >= vocab_size) return BadKey("eos_token_id", "an id of the vocabulary");
    target->push_back(static_cast<int32_t>(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingDefaults> ParseGenerationConfig(const std::string& json,
                                                       int64_t vocab_size) {
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, " is not a JSON object"));
  }
  SamplingDefaults out;
  absl::Status status = ReadNumber(config, "temperature", 0, false, 100, &out.temperature);
  status.Update(ReadNumber(config, "top_p", 0, true, 1, &out.top_p));
  status.Update(ReadNumber(config, "min_p", 0, false, 1, &out.min_p));
  status.Update(ReadNumber(config, "repetition_penalty", 0, true, 100, &out.repetition_penalty));
  status.Update(ReadCount(config, "top_k", 0, &out.top_k));
  status.Update(ReadCount(config, "max_new_tokens", 1, &out.max_tokens));
  status.Update(ReadEos(config, vocab_size, &out.eos_token_ids));
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<SamplingDefaults> LoadSamplingDefaults(const std::string& dir, int64_t vocab_size) {
  const std::filesystem::path path = std::filesystem::path(dir) / kFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return SamplingDefaults{};
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, " is not a regular file"));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, " is larger than 1 MiB"));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::InvalidArgumentError(absl::StrCat(kFile, " cannot be read"));
  return ParseGenerationConfig(text.str(), vocab_size);
}

std::string ToJson(const SamplingDefaults& defaults) {
  return Json{{"temperature", defaults.temperature},
              {"top_p", defaults.top_p},
              {"top_k", defaults.top_k},
              {"min_p", defaults.min_p},
              {"repetition_penalty", defaults.repetition_penalty},
              {"max_tokens", defaults.max_tokens}}
      .dump();
}

}  // namespace fox
