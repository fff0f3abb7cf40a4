// The optional files around a tokenizer. See tokenizer_config.h.
#include "models/tokenizer/tokenizer_config.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"
#include "models/tokenizer/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {size_t{16} << 20, 32, 2'000'000, /*python_numbers=*/true};
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kAddedTokensFile[] = "added_tokens.json";
constexpr char kSpecialTokensFile[] = "special_tokens_map.json";

// Roles in the order in which their tokens are numbered.
constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

// Reads roles from `file`: only the missing ones, or all of them with `precedence`.
absl::Status ReadRoles(const Json& json, const char* file, bool precedence,
                       TokenizerConfig* config) {
  for (const char* role : kRoles) {
    const auto it = json.find(role);
    if (it == json.end()) continue;
    std::optional<AddedToken> token;
    if (!it->is_null()) {
      token = ReadAddedToken(*it, file);
      if (!token.has_value()) return InvalidFile(file, absl::StrCat(role, " is not a token"));
      token->special = true;
    }
    if (precedence || !config->roles.contains(role)) config->roles[role] = token;
  }
  return absl::OkStatus();
}

// Reads further special tokens: a list of tokens, or an object from names to tokens.
absl::Status ReadFurther(const Json& json, const char* file, TokenizerConfig* config) {
  for (const char* key :
       {"model_specific_special_tokens", "additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = FindField(&json, key);
    if (list == nullptr) continue;
    if (!list->is_structured()) return InvalidFile(file, absl::StrCat(key, " is not a list"));
    for (const Json& entry : *list) {
      std::optional<AddedToken> token = ReadAddedToken(entry, file);
      if (!token.has_value()) return InvalidFile(file, absl::StrCat(key, " holds no token"));
      token->special = true;
      config->named.push_back(*token);
    }
  }
  return absl::OkStatus();
}

using TokensById = std::map<int32_t, AddedToken>;

absl::Status ReadAddedTokensDecoder(const Json& json, TokensById* tokens) {
  if (!json.is_object()) return InvalidFile(kConfigFile, "added_tokens_decoder is not an object");
  for (const auto& [key, value] : json.items()) {
    const std::optional<AddedToken> token = ReadAddedToken(value, kConfigFile);
    int32_t id = 0;
    if (!token.has_value() || !absl::SimpleAtoi(key, &id) || id < 0) {
      return InvalidFile(kConfigFile, absl::StrCat("added_tokens_decoder entry ", Quoted(key)));
    }
    (*tokens)[id] = *token;
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& json, TokensById* tokens) {
  for (const auto& [content, id] : json.items()) {
    const std::optional<int32_t> number = ReadId(id);
    if (!number.has_value()) {
      return InvalidFile(kAddedTokensFile, absl::StrCat("id of ", Quoted(content)));
    }
    (*tokens)[*number] = {.content = content, .normalized = true, .file = kAddedTokensFile};
  }
  return absl::OkStatus();
}

// An empty object for a missing file.
absl::StatusOr<Json> ParseObject(const std::string& text, const char* file) {
  if (text.empty()) return Json::object();
  return ReadJsonObject(text, kLimits, file);
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

  config.tokenizer_class = ReadString(&*main, "tokenizer_class").value_or("");
  if (config.tokenizer_class.ends_with("Fast")) {
    config.tokenizer_class.resize(config.tokenizer_class.size() - 4);
  }
  config.add_bos_token = ReadBool(*main, "add_bos_token");
  config.add_eos_token = ReadBool(*main, "add_eos_token");
  config.add_prefix_space = ReadBool(*main, "add_prefix_space");
  config.legacy = ReadBool(*main, "legacy");
  const Json* decoder = FindField(&*main, "added_tokens_decoder");
  const bool complete = decoder != nullptr;
  TokensById tokens;
  absl::Status status = ReadRoles(*main, kConfigFile, true, &config);
  if (status.ok()) status = ReadFurther(*main, kConfigFile, &config);
  if (status.ok()) status = ReadRoles(*special, kSpecialTokensFile, !complete, &config);
  if (complete) {
    status.Update(ReadAddedTokensDecoder(*decoder, &tokens));
    std::set<std::string> contents;
    for (const auto& [id, token] : tokens) contents.insert(token.content);
    std::erase_if(config.roles, [&](const auto& role) {
      return role.second.has_value() && role.second->file == kSpecialTokensFile &&
             !contents.contains(role.second->content);
    });
  } else {
    status.Update(ReadFurther(*special, kSpecialTokensFile, &config));
    status.Update(ReadAddedTokens(*added, &tokens));
  }
  if (!status.ok()) return status;
  std::set<std::string> special_contents;
  for (const AddedToken& token : config.named) special_contents.insert(token.content);
  for (const auto& [role, token] : config.roles) {
    if (token.has_value()) special_contents.insert(token->content);
  }
  for (auto& [id, token] : tokens) {
    if (special_contents.contains(token.content)) token.special = true;
    if (!complete && token.special) token.normalized = false;
    config.added.push_back(token);
  }
  return config;
}

void AddTokens(const TokenizerConfig& config, AddedTokenList* list) {
  for (const AddedToken& token : config.added) list->Add(token);
  const auto add_once = [list](const AddedToken& token) {
    if (!list->Contains(token.content)) list->Add(token);
  };
  for (const char* role : kRoles) {
    const auto it = config.roles.find(role);
    if (it != config.roles.end() && it->second.has_value()) add_once(*it->second);
  }
  for (const AddedToken& token : config.named) add_once(token);
}

}  // namespace fox
