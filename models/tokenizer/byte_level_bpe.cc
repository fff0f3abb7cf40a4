// Checks of a BPE definition and the encoding itself. See byte_level_bpe.h.
#include "models/tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/bpe_windows.h"
#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/nfc.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

std::string WithVisibleSpaces(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{" ", kVisibleSpace}});
}

AddedTokenSplitter::Normalize NormalizerOf(const BpeDefinition& definition) {
  if (!definition.nfc && !definition.visible_spaces && !definition.prefix_space) return nullptr;
  return [nfc = definition.nfc, visible = definition.visible_spaces,
          prefix = definition.prefix_space](std::string_view text) {
    std::string normalized = nfc ? Nfc(text) : std::string(text);
    if (visible) normalized = WithVisibleSpaces(normalized);
    if (prefix && !normalized.empty()) normalized.insert(0, kVisibleSpace);
    return normalized;
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteLevelBpe>> ByteLevelBpe::Create(const BpeDefinition& definition,
                                                                   int64_t model_vocab_size) {
  std::unique_ptr<ByteLevelBpe> bpe(new ByteLevelBpe());
  Info& info = bpe->info_;
  info.kind = definition.byte_fallback ? "byte_fallback_bpe" : "byte_level_bpe";
  if (definition.json_escaped) info.kind = "longcrawl64";
  info.json_escaped = definition.json_escaped;
  info.strip_leading_space = definition.strip_leading_space;
  if (definition.byte_fallback) info.replacement = Utf8Replacement::kByte;
  bpe->byte_fallback_ = definition.byte_fallback;
  bpe->metaspace_ = definition.metaspace;
  bpe->splitter_ = bpe->spaces_ = AddedTokenSplitter(NormalizerOf(definition));
  absl::StatusOr<Pretokenizer> pretokenizer = Pretokenizer::Create(definition.pretokenizer);
  if (!pretokenizer.ok()) {
    return absl::UnimplementedError(
        absl::StrCat(definition.vocab_file, ": pre_tokenizer ", pretokenizer.status().message()));
  }
  bpe->pretokenizer_ = *std::move(pretokenizer);
  absl::Status status = bpe->SetTokens(definition, model_vocab_size);
  if (status.ok()) status = bpe->SetSpecial(definition);
  if (status.ok()) status = bpe->SetBytes(definition);
  if (status.ok()) status = bpe->SetMerges(definition);
  if (!status.ok()) return status;
  const auto size = static_cast<size_t>(info.vocab_size);
  FOX_CHECK(bpe->tokens_.size() == size && bpe->width_.size() == size);
  for (const auto& role : {info.bos_id, info.eos_id, info.unk_id}) {
    FOX_CHECK(!role || (*role >= 0 && *role < info.vocab_size));
  }
  return bpe;
}

absl::Status ByteLevelBpe::SetTokens(const BpeDefinition& definition, int64_t model_vocab_size) {
  absl::flat_hash_map<int32_t, const std::string*> token_of_id;
  const auto add = [&](const char* file, const std::string& token, int32_t id) -> absl::Status {
    if (id < 0 || id >= model_vocab_size) {
      return InvalidFile(file,
                         absl::StrCat("token ", Quoted(token), " has id ", id,
                                      ", outside the model's vocabulary of ", model_vocab_size));
    }
    const auto [it, inserted] = token_of_id.try_emplace(id, &token);
    if (!inserted && *it->second != token) {
      return InvalidFile(file, absl::StrCat("tokens ", Quoted(*it->second), " and ", Quoted(token),
                                            " share the id ", id));
    }
    return absl::OkStatus();
  };
  for (const auto& [token, id] : definition.vocab) {
    if (absl::Status status = add(definition.vocab_file, token, id); !status.ok()) return status;
  }
  const AddedTokenSplitter::Normalize normalize = NormalizerOf(definition);
  // Tokens that are recognised in normalized text stand for their normalized text.
  absl::flat_hash_map<int32_t, std::string> normalized;
  for (const AddedToken& token : definition.added) {
    if (absl::Status status = add(token.file, token.content, token.id); !status.ok()) return status;
    if (token.normalized && normalize) normalized.emplace(token.id, normalize(token.content));
    const auto in_vocab = definition.vocab.find(token.content);
    if (in_vocab != definition.vocab.end() && in_vocab->second != token.id) {
      return InvalidFile(
          token.file, absl::StrCat("added token ", Quoted(token.content), " has the id ", token.id,
                                   ", but ", in_vocab->second, " in ", definition.vocab_file));
    }
  }
  int32_t size = 0;
  for (const auto& [id, token] : token_of_id) size = std::max(size, id + 1);
  info_.vocab_size = size;
  tokens_.resize(static_cast<size_t>(size));
  width_.resize(tokens_.size());
  for (int32_t id = 0; id < size; ++id) {
    const auto it = token_of_id.find(id);
    if (it == token_of_id.end()) continue;  // padding of the vocabulary
    const auto found = normalized.find(id);
    const std::string& text = found == normalized.end() ? *it->second : found->second;
    Token& token = TokenOf(id);
    if (byte_fallback_) {
      token.bytes = absl::StrReplaceAll(text, {{kVisibleSpace, " "}});
      token.kind = absl::StartsWith(token.bytes, " ") ? TokenKind::kWord : TokenKind::kText;
    } else {  // a token with characters outside the alphabet stands for its own text
      token.bytes = BytesOfToken(text).value_or(text);
    }
    width_[static_cast<size_t>(id)] =
        static_cast<uint32_t>(byte_fallback_ ? text.size() : token.bytes.size());
  }
  return absl::OkStatus();
}

absl::Status ByteLevelBpe::SetBytes(const BpeDefinition& definition) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto it =
        definition.vocab.find(byte_fallback_ ? absl::StrFormat("<0x%02X>", byte)
                                             : CharacterOfByte(static_cast<uint8_t>(byte)));
    const bool known = it != definition.vocab.end();
    if (!known && !definition.drop_unknown_bytes) {
      return InvalidFile(definition.vocab_file, absl::StrCat("no token for the byte ", byte));
    }
    id_of_byte_[static_cast<size_t>(byte)] = known ? it->second : kNoToken;
    knows_bytes_ = knows_bytes_ && known;
    if (!byte_fallback_ || !known) continue;
    TokenOf(it->second).bytes = std::string(1, static_cast<char>(byte));
    TokenOf(it->second).kind = TokenKind::kBytes;
    width_[static_cast<size_t>(it->second)] = 1;
  }
  for (const auto& [token, id] : definition.vocab) {
    if (!byte_fallback_ || token.empty() || IsAdded(id)) continue;
    const Utf8Unit first = NextUtf8(token.data(), token.size());
    if (first.length == token.size()) id_of_character_.emplace(first.code_point, id);
  }
  if (definition.ignore_merges) {
    for (const auto& [token, id] : definition.vocab) {
      const std::optional<std::string> bytes = BytesOfToken(token);
      if (bytes.has_value() && !IsAdded(id)) id_of_bytes_.emplace(*bytes, id);
    }
  }
  return absl::OkStatus();
}

absl::Status ByteLevelBpe::SetMerges(const BpeDefinition& definition) {
  for (const auto& [left, right] : definition.merges) {
    const auto left_it = definition.vocab.find(left);
    const auto right_it = definition.vocab.find(right);
    const auto product_it = definition.vocab.find(left + right);
    if (left.empty() || right.empty() || left_it == definition.vocab.end() ||
        right_it == definition.vocab.end() || product_it == definition.vocab.end()) {
      return InvalidFile(definition.merges_file,
                         absl::StrCat("merge of ", Quoted(left), " and ", Quoted(right),
                                      " needs a token that is not in ", definition.vocab_file));
    }
    const auto is_byte = [this](int32_t id) { return KindOf(id) == TokenKind::kBytes; };
    if (byte_fallback_ &&
        (is_byte(left_it->second) || is_byte(right_it->second) || is_byte(product_it->second))) {
      return InvalidFile(definition.merges_file,
                         absl::StrCat("merge of ", Quoted(left), " and ", Quoted(right),
                                      " concerns a token of byte_fallback"));
    }
    // Such a merge would make an added token of text in which it was not recognised.
    if (IsAdded(product_it->second)) continue;
    merger_.AddRule(left_it->second, right_it->second, product_it->second);
  }
  return absl::OkStatus();
}

absl::Status ByteLevelBpe::SetSpecial(const BpeDefinition& definition) {
  std::set<std::string> added;
  for (const AddedToken& token : definition.added) {
    if (token.content.empty() || token.content.size() > AddedTokenSplitter::kMaxContent) {
      return InvalidFile(token.file,
                         absl::StrCat("added token of ", token.content.size(), " bytes; 1 to ",
                                      AddedTokenSplitter::kMaxContent, " allowed"));
    }
    // True if it makes no difference whether the token is recognised before or after escaping.
    const bool commutes =
        JsonEscape(token.content) == token.content && !token.lstrip && !token.rstrip;
    if (definition.json_escaped && !commutes) {
      return absl::UnimplementedError(absl::StrCat(
          token.file, ": JSONGPT2Tokenizer with the added token ", Quoted(token.content)));
    }
    if (!added.insert(token.content).second) {
      return InvalidFile(token.file,
                         absl::StrCat("added token ", Quoted(token.content), " is there twice"));
    }
    splitter_.Add(token);
    // Found in the text as it is, where a space is not visible yet.
    const bool marked = byte_fallback_ && absl::StrContains(token.content, kVisibleSpace);
    if (IsWhiteSpace(token.content)) {
      spaces_.Add(token);
    } else if (token.special || !definition.vocab.contains(token.content) ||
               !(token.single_word || marked || (token.normalized && NormalizerOf(definition)))) {
      TokenOf(token.id).added = true;
    }  // else an ordinary word of the vocabulary: merging makes it where it is not recognised
    if (token.special) TokenOf(token.id).special = true;
  }
  for (const auto* around : {&definition.prefix, &definition.suffix}) {
    for (const int32_t id : *around) {
      if (id < 0 || id >= info_.vocab_size) {
        return InvalidFile(definition.vocab_file, absl::StrCat("unknown special token id ", id));
      }
    }
  }
  info_.prefix = definition.prefix;
  info_.suffix = definition.suffix;
  info_.bos_id = definition.bos_id;
  info_.eos_id = definition.eos_id;
  info_.unk_id = definition.unk_id;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ByteLevelBpe::Encode(const std::string& given,
                                                          bool add_special_tokens) const {
  absl::StatusOr<std::vector<int32_t>> ids = EncodeAround(splitter_, given, true);
  return ids.ok() && add_special_tokens ? WithSpecialTokens(*std::move(ids)) : ids;
}

absl::StatusOr<std::vector<int32_t>> ByteLevelBpe::EncodeAsText(const std::string& given,
                                                                bool at_text_start) const {
  return EncodeAround(spaces_, given, at_text_start);
}

absl::StatusOr<std::vector<int32_t>> ByteLevelBpe::EncodeAround(const AddedTokenSplitter& splitter,
                                                                const std::string& given,
                                                                bool at_text_start) const {
  using Metaspace = BpeDefinition::Metaspace;
  if (!IsValidUtf8(given)) return absl::InvalidArgumentError("text is not valid UTF-8");
  const std::string escaped = info_.json_escaped ? JsonEscape(given) : "";
  const std::string& text = info_.json_escaped ? escaped : given;
  std::vector<int32_t> ids;
  BpeMerger::Workspace workspace;
  uint64_t budget = Pretokenizer::Budget(text.size());
  absl::Status status;
  splitter.Split(text, [&](const TextPart& part) {
    if (part.id != TextPart::kText) {
      ids.push_back(part.id);
    } else if (status.ok()) {
      std::string visible;
      if (metaspace_ != Metaspace::kAsIs) {
        const bool start = metaspace_ == Metaspace::kFirst && at_text_start && ids.empty();
        visible = WithVisibleSpaces(part.text);
        if ((start || metaspace_ == Metaspace::kAlways) &&
            !absl::StartsWith(visible, kVisibleSpace)) {
          visible.insert(0, kVisibleSpace);
        }
      }
      const std::string_view cut = visible.empty() ? part.text : visible;
      status = pretokenizer_.Split(
          cut, &budget, [&](std::string_view piece) { EncodePretoken(piece, &workspace, &ids); });
    }
  });
  if (!status.ok()) return status;
  return ids;
}

void ByteLevelBpe::EncodePretoken(std::string_view pretoken, BpeMerger::Workspace* workspace,
                                  std::vector<int32_t>* ids) const {
  if (!id_of_bytes_.empty()) {
    const auto it = id_of_bytes_.find(absl::string_view(pretoken.data(), pretoken.size()));
    if (it != id_of_bytes_.end()) return ids->push_back(it->second);
  }
  std::string known;
  if (!knows_bytes_) pretoken = known = WithTokens(pretoken);
  if (pretoken.size() <= kWindowBytes) return Merge(pretoken, workspace, ids);
  std::vector<int32_t> symbols;
  const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
    symbols.clear();
    Merge(window, workspace, &symbols);
    size_t token_end = 0, whole_end = 0;
    for (const int32_t id : symbols) {
      token_end += width_[static_cast<size_t>(id)];
      const bool spells =
          byte_fallback_ && token_end < window.size() && IsContinuationByte(window[token_end]);
      if (!spells) whole_end = token_end;
      tokens->push_back({id, whole_end});
    }
    return true;
  };
  EncodeInWindows(pretoken, kWindowBytes, /*lookahead=*/0, encode, ids);
}

// The characters, or without byte_fallback the bytes, of `text` that have tokens.
std::string ByteLevelBpe::WithTokens(std::string_view text) const {
  std::string known;
  for (size_t at = 0, length = 1; at < text.size(); at += length) {
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    if (byte_fallback_) length = unit.length;
    const std::string_view part = text.substr(at, length);
    const bool spelled = std::all_of(part.begin(), part.end(), [this](char byte) {
      return id_of_byte_[static_cast<uint8_t>(byte)] != kNoToken;
    });
    if (spelled || (byte_fallback_ && id_of_character_.contains(unit.code_point))) known += part;
  }
  return known;
}

// Appends the symbols that merging begins with: bytes, or characters with byte_fallback.
void ByteLevelBpe::AppendSymbols(std::string_view text, std::vector<int32_t>* symbols) const {
  size_t length = 1;
  for (size_t at = 0; at < text.size(); at += length) {
    if (byte_fallback_) {
      const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
      const auto it = id_of_character_.find(unit.code_point);
      length = unit.length;
      FOX_CHECK(length >= 1 && at + length <= text.size());
      if (it != id_of_character_.end()) {
        symbols->push_back(it->second);
        continue;
      }
    }
    for (const char byte : text.substr(at, length)) {
      symbols->push_back(id_of_byte_[static_cast<uint8_t>(byte)]);
    }
  }
}

// Appends the tokens of `text` as one pre-token.
void ByteLevelBpe::Merge(std::string_view text, BpeMerger::Workspace* workspace,
                         std::vector<int32_t>* ids) const {
  std::vector<int32_t>& symbols = workspace->symbols;
  symbols.clear();
  AppendSymbols(text, &symbols);
  merger_.Merge(&symbols, workspace);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace fox
