// Fields that several tokenizer files share, read from parsed JSON without exceptions. A missing
// field, a null and a field of the wrong type have no value. Read tokenizer_config.h next.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/added_tokens.h"

namespace fox {

// A field of an object; null if `json` is null or no object, or if the field is missing or null.
inline const nlohmann::json* FindField(const nlohmann::json* json, const std::string& key) {
  if (json == nullptr || !json->is_object()) return nullptr;
  const auto it = json->find(key);
  return it == json->end() || it->is_null() ? nullptr : &*it;
}

inline std::optional<std::string> ReadString(const nlohmann::json* json, const char* key) {
  const nlohmann::json* field = FindField(json, key);
  return field != nullptr && field->is_string() ? std::optional(field->get<std::string>())
                                                : std::nullopt;
}

inline std::optional<bool> ReadBool(const nlohmann::json& json, const char* key) {
  const nlohmann::json* field = FindField(&json, key);
  return field != nullptr && field->is_boolean() ? std::optional(field->get<bool>()) : std::nullopt;
}
inline bool ReadFlag(const nlohmann::json& json, const char* key, bool fallback = false) {
  return ReadBool(json, key).value_or(fallback);
}

inline std::optional<int32_t> ReadId(const nlohmann::json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto id = json.get<uint64_t>();
  if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return std::nullopt;
  return static_cast<int32_t>(id);
}

// A token of `file`: a string, or an object with content and flags. The id is not read.
inline std::optional<AddedToken> ReadAddedToken(const nlohmann::json& json, const char* file) {
  AddedToken token;
  token.file = file;
  if (json.is_string()) {
    token.content = json.get<std::string>();
    return token;
  }
  const std::optional<std::string> content = ReadString(&json, "content");
  if (!content.has_value()) return std::nullopt;
  token.content = *content;
  token.lstrip = ReadFlag(json, "lstrip");
  token.rstrip = ReadFlag(json, "rstrip");
  token.normalized = ReadFlag(json, "normalized");
  token.single_word = ReadFlag(json, "single_word");
  token.special = ReadFlag(json, "special");
  return token;
}

// Reads a vocabulary of `file`: an object from tokens to ids.
inline absl::Status ReadVocab(const nlohmann::json& json, const char* file,
                              absl::flat_hash_map<std::string, int32_t>* vocab) {
  vocab->reserve(json.size());
  for (const auto& [token, value] : json.items()) {
    const std::optional<int32_t> id = ReadId(value);
    if (!id.has_value()) return InvalidFile(file, absl::StrCat("id of token ", Quoted(token)));
    (*vocab)[token] = *id;
  }
  return absl::OkStatus();
}

// Splits a merge rule "left right".
inline std::optional<std::pair<std::string, std::string>> ReadMerge(const std::string& line) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos) {
    return std::nullopt;
  }
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

}  // namespace fox
