// Fields that several tokenizer files share, read from parsed JSON without exceptions. Nothing is
// returned for a missing field and for one of the wrong type. Read tokenizer_config.h next.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "models/tokenizer/added_tokens.h"

namespace fox {

inline std::optional<std::string> ReadString(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(key);
  if (it == json.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

// False when missing.
inline bool ReadFlag(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_boolean() && it->get<bool>();
}

inline std::optional<int32_t> ReadId(const nlohmann::json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto id = json.get<uint64_t>();
  if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return std::nullopt;
  return static_cast<int32_t>(id);
}

// A token of `file` as a string or as an object with content and flags; the id is not read.
inline std::optional<AddedToken> ReadAddedToken(const nlohmann::json& json, const char* file) {
  AddedToken token;
  token.file = file;
  if (json.is_string()) {
    token.content = json.get<std::string>();
    return token;
  }
  const std::optional<std::string> content = ReadString(json, "content");
  // Finding word boundaries is not implemented; such tokens are refused.
  if (!content.has_value() || ReadFlag(json, "single_word")) return std::nullopt;
  token.content = *content;
  token.lstrip = ReadFlag(json, "lstrip");
  token.rstrip = ReadFlag(json, "rstrip");
  token.normalized = ReadFlag(json, "normalized");
  token.special = ReadFlag(json, "special");
  return token;
}

}  // namespace fox
