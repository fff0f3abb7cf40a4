// Parsing of vocab.json and merges.txt, and which of their tokens are special. See
// bpe_definition.h.

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/error_text.h"
#include "models/json_reader.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/json_fields.h"

namespace fox {
namespace {

constexpr std::ptrdiff_t kMaxLines = 10'000'000;
constexpr JsonLimits kLimits = {size_t{64} << 20, 2, 10'000'000};
constexpr char kVocabFile[] = "vocab.json";
constexpr char kMergesFile[] = "merges.txt";
constexpr char kEndOfText[] = "<|endoftext|>";

absl::Status ParseVocab(const std::string& text, BpeDefinition* definition) {
  const absl::StatusOr<nlohmann::json> vocab = ReadJsonObject(text, kLimits, kVocabFile);
  return vocab.ok() ? ReadVocab(*vocab, kVocabFile, &definition->vocab) : vocab.status();
}

absl::Status ParseMerges(const std::string& text, BpeDefinition* definition) {
  if (std::count(text.begin(), text.end(), '\n') > kMaxLines) {
    return InvalidFile(kMergesFile, absl::StrCat("more than ", kMaxLines, " lines"));
  }
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.rfind("#version", 0) == 0) continue;
    auto merge = ReadMerge(line);
    if (!merge)
      return InvalidFile(kMergesFile, absl::StrCat("line ", number, " is not two tokens"));
    definition->merges.push_back(*std::move(merge));
  }
  return absl::OkStatus();
}

// Adds a token that has an id, unless it is there already; then it only becomes special.
void AddOnce(AddedToken token, std::optional<int32_t> id, BpeDefinition* definition) {
  for (AddedToken& existing : definition->added) {
    if (existing.content != token.content) continue;
    existing.special = existing.special || token.special;
    return;
  }
  if (!id.has_value()) return;
  token.id = *id;
  definition->added.push_back(std::move(token));
}

void AddSpecialTokens(const TokenizerConfig& config, BpeDefinition* definition) {
  definition->added = config.added;
  for (const auto& [content, id] : config.added_ids) {
    AddOnce({.content = content, .file = kAddedTokensFile}, id, definition);
  }
  const auto add = [&](const std::optional<AddedToken>& token) {
    if (!token.has_value()) return;
    const auto it = definition->vocab.find(token->content);
    const bool found = it != definition->vocab.end();
    AddOnce(*token, found ? std::optional(it->second) : std::nullopt, definition);
  };
  const auto role = [&](const char* name) -> std::optional<AddedToken> {
    const auto it = config.roles.find(name);
    if (it != config.roles.end()) return it->second;
    if (!definition->vocab.contains(kEndOfText)) return std::nullopt;
    return AddedToken{.content = kEndOfText, .special = true, .file = kVocabFile};
  };
  for (auto [name, token] :
       {std::pair("bos_token", &definition->bos), std::pair("eos_token", &definition->eos),
        std::pair("unk_token", &definition->unk)}) {
    *token = role(name);
    add(*token);
  }
  if (config.roles.contains("pad_token")) add(role("pad_token"));
  for (const AddedToken& token : config.additional) add(token);
}

}  // namespace

absl::StatusOr<BpeDefinition> ParseGpt2Files(const std::string& vocab_json,
                                             const std::string& merges_txt,
                                             const TokenizerConfig& config) {
  BpeDefinition definition;
  definition.vocab_file = kVocabFile;
  definition.merges_file = kMergesFile;
  absl::Status status = ParseVocab(vocab_json, &definition);
  if (status.ok()) status = ParseMerges(merges_txt, &definition);
  if (!status.ok()) return status;
  AddSpecialTokens(config, &definition);
  definition.pretokenizer[0].prefix_space = config.add_prefix_space.value_or(false);
  const bool add_bos = config.add_bos_token.value_or(config.tokenizer_class == "JSONGPT2Tokenizer");
  if (add_bos && definition.bos.has_value()) {
    for (const AddedToken& token : definition.added) {
      if (token.content == definition.bos->content) definition.prefix = {token.id};
    }
  }
  return definition;
}

}  // namespace fox
