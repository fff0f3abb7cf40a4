// The three small files around a tokenizer (tokenizer_config.json, special_tokens_map.json,
// added_tokens.json): what is accepted means the same when each is written again.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/tokenizer/tokenizer_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

std::string Described(const AddedToken& token) {
  return absl::StrCat(token.content, "|", token.id, "|", token.lstrip, token.rstrip,
                      token.normalized, token.special, token.file, "\n");
}

std::string Described(const TokenizerConfig& config) {
  std::string out = config.tokenizer_class;
  for (const auto& flag : {config.add_bos_token, config.add_prefix_space}) {
    absl::StrAppend(&out, " ", flag.has_value() ? (*flag ? "yes" : "no") : "unset");
  }
  for (const auto& [role, token] : config.roles) {
    absl::StrAppend(&out, role, "=", token.has_value() ? Described(*token) : "null");
  }
  for (const AddedToken& token : config.additional) out += Described(token);
  // Written again, keys are in the order of their text, as they are here.
  for (const AddedToken& token : config.added) out += Described(token);
  for (const auto& [content, id] : config.added_ids) absl::StrAppend(&out, content, "@", id);
  return out;
}

std::string Again(const std::string& text) {
  return text.empty() ? "" : nlohmann::json::parse(text, nullptr, false).dump();
}

}  // namespace

void Fuzz(FuzzInput in) {
  const std::vector<std::string> files = in.Sections(3);
  const absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(files[0], files[1], files[2]);
  if (!config.ok()) return CheckRefusal(config.status());
  for (const auto* tokens : {&config->additional, &config->added}) {
    for (const AddedToken& token : *tokens) FOX_CHECK(token.id >= 0);
  }
  const absl::StatusOr<TokenizerConfig> again =
      ParseTokenizerConfig(Again(files[0]), Again(files[1]), Again(files[2]));
  FOX_CHECK(again.ok() && Described(*again) == Described(*config));
}

}  // namespace fox
