// Parsing of vocab.json (as a stream, to see duplicate keys) and merges.txt. See gpt2_files.h.
#include "models/tokenizer/gpt2_files.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/error_text.h"

namespace fox {
namespace {

constexpr std::ptrdiff_t kMaxLines = 10'000'000;
constexpr char kEndOfText[] = "<|endoftext|>";

// Accepts one object of non-negative integers and stops at anything else.
class VocabReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit VocabReader(absl::flat_hash_map<std::string, int32_t>* vocab) : vocab_(vocab) {}
  const std::string& error() const { return error_; }

  bool start_object(std::size_t /*elements*/) override {
    if (depth_++ == 0) return true;
    return Fail(absl::StrCat("token ", Quoted(key_), " has no number"));
  }
  bool end_object() override { return true; }
  bool key(string_t& token) override {
    key_ = token;
    return true;
  }
  bool number_unsigned(number_unsigned_t id) override {
    if (depth_ == 0) return Fail("not an object");
    if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      return Fail(absl::StrCat("id of token ", Quoted(key_)));
    }
    if (vocab_->emplace(key_, static_cast<int32_t>(id)).second) return true;
    return Fail(absl::StrCat("token ", Quoted(key_), " is there twice"));
  }
  bool null() override { return NotANumber(); }
  bool boolean(bool /*value*/) override { return NotANumber(); }
  bool number_integer(number_integer_t /*value*/) override { return NotANumber(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return NotANumber();
  }
  bool string(string_t& /*value*/) override { return NotANumber(); }
  bool binary(binary_t& /*value*/) override { return NotANumber(); }
  bool start_array(std::size_t /*elements*/) override { return NotANumber(); }
  bool end_array() override { return NotANumber(); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail(absl::StrCat("not JSON at byte ", position));
  }

 private:
  bool NotANumber() { return Fail(absl::StrCat("id of token ", Quoted(key_))); }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  absl::flat_hash_map<std::string, int32_t>* vocab_;
  std::string key_, error_;
  int depth_ = 0;
};

absl::Status ParseMerges(const std::string& text, BpeDefinition* definition) {
  if (std::count(text.begin(), text.end(), '\n') > kMaxLines) {
    return absl::InvalidArgumentError(absl::StrCat("merges.txt: more than ", kMaxLines, " lines"));
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
      return absl::InvalidArgumentError(
          absl::StrCat("merges.txt: line ", number, " is not two tokens"));
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
    AddOnce(token, definition);
  }
  const auto add = [&](AddedToken token) {
    const std::optional<int32_t> id = FindId(token.content, *definition, config);
    token.id = id.value_or(0);
    const bool known = std::any_of(definition->added.begin(), definition->added.end(),
                                   [&](const auto& a) { return a.content == token.content; });
    if (id.has_value() || known) AddOnce(token, definition);
  };
  const auto add_role = [&](const char* role, std::optional<std::string>* content) {
    const auto it = config.roles.find(role);
    if (it == config.roles.end()) {
      if (definition->vocab.find(kEndOfText) == definition->vocab.end()) return;
      *content = kEndOfText;
      AddedToken token;
      token.content = kEndOfText;
      token.special = true;
      add(token);
    } else if (it->second.has_value()) {
      *content = it->second->content;
      add(*it->second);
    }
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
  VocabReader reader(&definition.vocab);
  if (!nlohmann::json::sax_parse(vocab_json, &reader)) {
    return absl::InvalidArgumentError(absl::StrCat("vocab.json: ", reader.error()));
  }
  absl::Status status = ParseMerges(merges_txt, &definition);
  if (!status.ok()) return status;
  AddSpecialTokens(config, &definition);
  definition.add_prefix_space = config.add_prefix_space.value_or(false);
  const bool add_bos = config.add_bos_token.value_or(config.tokenizer_class == "JSONGPT2Tokenizer");
  if (add_bos && definition.bos.has_value()) {
    for (const AddedToken& token : definition.added) {
      if (token.content == *definition.bos) definition.prefix = {token.id};
    }
  }
  return definition;
}

}  // namespace fox
