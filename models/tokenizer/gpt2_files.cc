// Parsing of vocab.json and merges.txt, and which of their tokens are special. See
// bpe_definition.h.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"
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
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with("#version")) continue;
    auto merge = ReadMerge(line);
    if (!merge)
      return InvalidFile(kMergesFile, absl::StrCat("line ", number, " is not two tokens"));
    definition->merges.push_back(*std::move(merge));
  }
  return absl::OkStatus();
}

// A class of transformers that reads vocab.json and merges.txt.
struct TokenizerClass {
  const char* name;
  const char* pattern;
  bool nfc, has_bos;
};
constexpr TokenizerClass kClasses[] = {{"", kGpt2Pattern, false, true},
                                       {"GPT2Tokenizer", kGpt2Pattern, false, true},
                                       {"JSONGPT2Tokenizer", kGpt2Pattern, false, true},
                                       {"Qwen2Tokenizer", kQwen2Pattern, true, false}};

// Sets the pre-tokenizer and normalizer of the class in `config`, and gives `config` the class's
// special tokens for roles that it lacks.
absl::Status SetClass(TokenizerConfig* of_class, BpeDefinition* definition) {
  TokenizerConfig& config = *of_class;
  const auto* known = std::find_if(
      std::begin(kClasses), std::end(kClasses),
      [&config](const TokenizerClass& entry) { return entry.name == config.tokenizer_class; });
  if (known == std::end(kClasses)) {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer_config.json: tokenizer_class ", Quoted(config.tokenizer_class),
                     " with vocab.json and merges.txt is not supported; GPT2Tokenizer and "
                     "Qwen2Tokenizer are, and tokenizer.json of any class"));
  }
  definition->nfc = known->nfc;
  definition->pretokenizer = {
      {.prefix_space = config.add_prefix_space.value_or(false), .pattern = known->pattern}};
  if (!config.add_bos_token) config.add_bos_token = config.tokenizer_class == "JSONGPT2Tokenizer";
  if (!definition->vocab.contains(kEndOfText)) return absl::OkStatus();
  const AddedToken end{.content = kEndOfText, .special = true, .file = kVocabFile};
  if (known->has_bos) config.roles.try_emplace("bos_token", end);
  for (const char* role : {"eos_token", "unk_token"}) config.roles.try_emplace(role, end);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeDefinition> ParseGpt2Files(const std::string& vocab_json,
                                             const std::string& merges_txt,
                                             TokenizerConfig config) {
  BpeDefinition definition;
  definition.vocab_file = kVocabFile;
  definition.merges_file = kMergesFile;
  absl::Status status = ParseVocab(vocab_json, &definition);
  if (status.ok()) status = ParseMerges(merges_txt, &definition);
  if (status.ok()) status = SetClass(&config, &definition);
  if (!status.ok()) return status;
  SetAddedTokens(config, {definition.vocab, definition.vocab.size()}, &definition);
  return definition;
}

}  // namespace fox
