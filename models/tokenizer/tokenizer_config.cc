// The optional files around a tokenizer. See tokenizer_config.h.
#include "models/tokenizer/tokenizer_config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/error_text.h"
#include "models/json_reader.h"
#include "models/tokenizer/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {size_t{16} << 20, 32, 2'000'000, /*python_numbers=*/true};
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kSpecialTokensFile[] = "special_tokens_map.json";

absl::Status ReadRoles(const Json& json, const char* file, TokenizerConfig* config) {
  for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto it = json.find(role);
    if (it == json.end()) continue;
    std::optional<AddedToken> token;
    if (!it->is_null()) {
      token = ReadAddedToken(*it, file);
      if (!token.has_value()) return InvalidFile(file, absl::StrCat(role, " is not a token"));
      token->special = true;
    }
    config->roles.emplace(role, token);
  }
  const auto it = json.find("additional_special_tokens");
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_array()) return InvalidFile(file, "additional_special_tokens is not a list");
  for (const Json& entry : *it) {
    std::optional<AddedToken> token = ReadAddedToken(entry, file);
    if (!token.has_value()) return InvalidFile(file, "additional_special_tokens holds no token");
    token->special = true;
    config->additional.push_back(*token);
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokensDecoder(const Json& json, TokenizerConfig* config) {
  const auto it = json.find("added_tokens_decoder");
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_object()) return InvalidFile(kConfigFile, "added_tokens_decoder is not an object");
  for (const auto& [key, value] : it->items()) {
    std::optional<AddedToken> token = ReadAddedToken(value, kConfigFile);
    int32_t id = 0;
    if (!token.has_value() || !absl::SimpleAtoi(key, &id) || id < 0) {
      return InvalidFile(kConfigFile, absl::StrCat("added_tokens_decoder entry ", Quoted(key)));
    }
    token->id = id;
    config->added.push_back(*token);
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& json, TokenizerConfig* config) {
  for (const auto& [content, id] : json.items()) {
    const std::optional<int32_t> number = ReadId(id);
    if (!number.has_value()) {
      return InvalidFile(kAddedTokensFile, absl::StrCat("id of ", Quoted(content)));
    }
    config->added_ids[content] = *number;
  }
  return absl::OkStatus();
}

// An empty object for a file that is not there.
absl::StatusOr<Json> ParseObject(const std::string& text, const char* file) {
  if (text.empty()) return Json::object();
  return ReadJsonObject(text, kLimits, file);
}

std::optional<bool> ReadBool(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_boolean()) return std::nullopt;
  return it->get<bool>();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& tokenizer_config,
                                                     const std::string& special_tokens_map,
                                                     const std::string& added_tokens) {
  TokenizerConfig config;
  const absl::StatusOr<Json> main = ParseObject(tokenizer_config, kConfigFile);
  if (!main.ok()) return main.status();
  const absl::StatusOr<Json> special = ParseObject(special_tokens_map, kSpecialTokensFile);
  if (!special.ok()) return special.status();
  const absl::StatusOr<Json> added = ParseObject(added_tokens, kAddedTokensFile);
  if (!added.ok()) return added.status();

  config.tokenizer_class = ReadString(*main, "tokenizer_class").value_or("");
  config.add_bos_token = ReadBool(*main, "add_bos_token");
  config.add_prefix_space = ReadBool(*main, "add_prefix_space");
  absl::Status status = ReadRoles(*main, kConfigFile, &config);
  if (status.ok()) status = ReadRoles(*special, kSpecialTokensFile, &config);
  if (status.ok()) status = ReadAddedTokensDecoder(*main, &config);
  if (status.ok()) status = ReadAddedTokens(*added, &config);
  if (!status.ok()) return status;
  return config;
}

}  // namespace fox
