// Parsing of vocab.json and merges.txt, and which of their tokens are special. See
// bpe_definition.h.

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
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
  if (!vocab.ok()) return vocab.status();
  definition->vocab.reserve(vocab->size());
  for (const auto& [token, value] : vocab->items()) {
    const std::optional<int32_t> id = ReadId(value);
    if (!id.has_value())
      return InvalidFile(kVocabFile, absl::StrCat("id of token ", Quoted(token)));
    definition->vocab[token] = *id;
  }
  return absl::OkStatus();
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
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      return InvalidFile(kMergesFile, absl::StrCat("line ", number, " is not two tokens"));
    }
    definition->merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return absl::OkStatus();
}

// The id of a token that is named without one.
std::optional<int32_t> FindId(const std::string& content, const BpeDefinition& definition,
                              const TokenizerConfig& config) {
  const auto in_vocab = definition.vocab.find(content);
  if (in_vocab != definition.vocab.end()) return in_vocab->second;
  const auto added = config.added_ids.find(content);
  if (added != config.added_ids.end()) return added->second;
  return std::nullopt;
}

// Adds `token`, unless it is there already; then it only becomes special.
void AddOnce(const AddedToken& token, BpeDefinition* definition) {
  for (AddedToken& existing : definition->added) {
    if (existing.content != token.content) continue;
    existing.special = existing.special || token.special;
    return;
  }
  definition->added.push_back(token);
}

void AddSpecialTokens(const TokenizerConfig& config, BpeDefinition* definition) {
  definition->added = config.added;
  for (const auto& [content, id] : config.added_ids) {
    AddedToken token;
    token.content = content;
    token.id = id;
    token.file = kAddedTokensFile;
    AddOnce(token, definition);
  }
  const auto add = [&](AddedToken token) {
    const std::optional<int32_t> id = FindId(token.content, *definition, config);
    token.id = id.value_or(0);
    const bool known = std::any_of(definition->added.begin(), definition->added.end(),
                                   [&](const auto& a) { return a.content == token.content; });
    if (id.has_value() || known) AddOnce(token, definition);
  };
  const auto add_role = [&](const char* role, std::optional<AddedToken>* named) {
    const auto it = config.roles.find(role);
    if (it == config.roles.end()) {
      if (definition->vocab.find(kEndOfText) == definition->vocab.end()) return;
      AddedToken token;
      token.content = kEndOfText;
      token.special = true;
      token.file = kVocabFile;
      *named = token;
    } else {
      *named = it->second;
    }
    if (named->has_value()) add(**named);
  };
  add_role("bos_token", &definition->bos);
  add_role("eos_token", &definition->eos);
  add_role("unk_token", &definition->unk);
  const auto pad = config.roles.find("pad_token");
  if (pad != config.roles.end() && pad->second.has_value()) add(*pad->second);
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
  definition.add_prefix_space = config.add_prefix_space.value_or(false);
  const bool add_bos = config.add_bos_token.value_or(config.tokenizer_class == "JSONGPT2Tokenizer");
  if (add_bos && definition.bos.has_value()) {
    for (const AddedToken& token : definition.added) {
      if (token.content == definition.bos->content) definition.prefix = {token.id};
    }
  }
  return definition;
}

}  // namespace fox
