// Encoding by the sentencepiece library, around it added tokens and windows. See
// sentencepiece_tokenizer.h.
#include "models/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

// How far the symbols that merging begins with depend on the text after them: as far as the longest
// piece that is recognised before merging. No value: models other than BPE score whole texts, and
// unused pieces are split by the last merge that made them, which may be anywhere in the text.
std::optional<size_t> LookaheadOf(const SentencePieceFile& file) {
  if (!file.is_bpe) return std::nullopt;
  size_t longest = 0;
  for (const Piece& piece : file.pieces) {
    if (piece.type == PieceType::kUnused) return std::nullopt;
    if (piece.type == PieceType::kUserDefined) longest = std::max(longest, piece.text.size());
  }
  return longest;
}

std::string WithMarks(std::string_view text, bool prefix) {
  std::string marked =
      absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{" ", kVisibleSpace}});
  if (prefix) marked.insert(0, kVisibleSpace);
  return marked;
}

}  // namespace

void SentencePieceTokenizer::AddPiece(const Piece& piece, const std::string& unk_surface) {
  const auto id = static_cast<int32_t>(tokens_.size());
  Token& token = tokens_.emplace_back();
  token.kind = piece.type == PieceType::kByte ? TokenKind::kBytes : TokenKind::kText;
  token.special = piece.type == PieceType::kControl;
  if (piece.type == PieceType::kUnknown) {
    token.bytes = unk_surface;
  } else if (token.special || token.kind == TokenKind::kBytes) {
    token.bytes = piece.text;
  } else {
    token.bytes = absl::StrReplaceAll(piece.text, {{kVisibleSpace, " "}});
    if (absl::StartsWith(piece.text, kVisibleSpace)) token.kind = TokenKind::kWord;
    token.added = piece.type == PieceType::kUserDefined && !IsWhiteSpace(token.bytes);
    if (token.added) user_defined_[id] = piece.text;
  }
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    const std::string& serialized, const TokenizerConfig& config, int64_t model_vocab_size,
    size_t window_bytes) {
  absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(serialized);
  if (!file.ok()) return file.status();
  if (static_cast<int64_t>(file->pieces.size()) > model_vocab_size) {
    return InvalidFile("tokenizer.model",
                       absl::StrCat(file->pieces.size(), " pieces, the model's vocabulary has ",
                                    model_vocab_size));
  }
  std::string error;
  std::unique_ptr<SentencePieceTokenizer> tokenizer(new SentencePieceTokenizer());
  tokenizer->normalizer_ = SentencePieceModel::Parse(serialized, &error);
  if (tokenizer->normalizer_ != nullptr) {
    if (file->only_marks_spaces) tokenizer->normalizer_.reset();
    tokenizer->model_ = SentencePieceModel::Parse(WithoutNormalizer(serialized), &error);
  }
  tokenizer->add_dummy_prefix_ = file->add_dummy_prefix && config.add_prefix_space.value_or(true);
  if (file->add_dummy_prefix && !file->spaces_are_suffixes) {
    tokenizer->model_prefix_ = file->escape_whitespaces ? kVisibleSpace : " ";
  }
  tokenizer->prefix_each_ = config.legacy.value_or(true);
  if (tokenizer->model_ == nullptr) return InvalidFile("tokenizer.model", Quoted(error));
  tokenizer->window_bytes_ = window_bytes;
  tokenizer->lookahead_ = LookaheadOf(*file);
  Info& info = tokenizer->info_;
  info.kind = "sentencepiece";
  info.unk_id = tokenizer->unk_piece_ = file->unk_id;
  info.strip_leading_space = tokenizer->add_dummy_prefix_ || file->remove_extra_whitespaces;
  info.strip_all_leading_spaces = file->remove_extra_whitespaces;
  info.replacement = Utf8Replacement::kByte;
  for (const Piece& piece : file->pieces) {
    tokenizer->AddPiece(piece, file->unk_surface);
  }
  tokenizer->marks_first_ = tokenizer->normalizer_ == nullptr && tokenizer->prefix_each_;
  if (tokenizer->marks_first_) {
    tokenizer->splitter_ = tokenizer->spaces_ =
        AddedTokenSplitter([prefix = tokenizer->add_dummy_prefix_](std::string_view text) {
          return WithMarks(text, prefix);
        });
  }
  const absl::Status status = tokenizer->SetAdded(*file, config, model_vocab_size);
  if (!status.ok()) return status;
  FOX_CHECK(info.vocab_size <= model_vocab_size && *info.unk_id < info.vocab_size);
  FOX_CHECK(tokenizer->tokens_.size() >= file->pieces.size());
  return tokenizer;
}

absl::Status SentencePieceTokenizer::SetAdded(const SentencePieceFile& file,
                                              const TokenizerConfig& config,
                                              int64_t model_vocab_size) {
  absl::flat_hash_map<std::string, int32_t> ids;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kByte) continue;  // its text is a byte
    ids[file.pieces[id].text] = static_cast<int32_t>(id);
  }
  AddedTokenList list(ids, file.pieces.size());
  for (const Piece& piece : file.pieces) {
    if (piece.type == PieceType::kControl) list.Add({.content = piece.text, .special = true});
  }
  AddTokens(config, &list);
  const std::string& unknown = file.pieces[static_cast<size_t>(unk_piece_)].text;
  if (!list.Contains(unknown)) list.Add({.content = unknown});
  const auto role = [&](const char* name, std::optional<int32_t> of_file) {
    const auto named = config.roles.find(name);
    if (named == config.roles.end()) return of_file;
    const std::optional<int32_t> id = list.IdOf(named->second);
    return id.value_or(0) < model_vocab_size ? id : std::nullopt;
  };
  info_.bos_id = role("bos_token", file.bos_id);
  info_.eos_id = role("eos_token", file.eos_id);
  if (config.add_bos_token.value_or(true) && info_.bos_id) info_.prefix = {*info_.bos_id};
  if (config.add_eos_token.value_or(false) && info_.eos_id) info_.suffix = {*info_.eos_id};
  for (const AddedToken& token : list.tokens()) {
    if (token.id >= model_vocab_size) continue;  // the model has no embedding for it: it is text
    if (token.content.size() > AddedTokenSplitter::kMaxContent) {
      return InvalidFile(token.file, "an added token of more than 512 bytes");
    }
    splitter_.Add(token);
    if (IsWhiteSpace(token.content)) spaces_.Add(token);
    const auto at = static_cast<size_t>(token.id);
    if (at >= tokens_.size()) tokens_.resize(at + 1, {.kind = TokenKind::kText});
    Token& known = tokens_[at];
    const bool is_space = IsWhiteSpace(token.content);
    known.added = known.added || !is_space;
    known.special = known.special || token.special;
    const PieceType type = at < file.pieces.size() ? file.pieces[at].type : PieceType::kControl;
    const bool by_library = type == PieceType::kNormal || type == PieceType::kUserDefined;
    if (by_library && !is_space) user_defined_[token.id] = token.content;
    // The unknown piece keeps the library's text unless the files list it, as in transformers.
    if (token.id == unk_piece_ && *token.file == '\0') continue;
    known.bytes = absl::StrReplaceAll(token.content, {{kVisibleSpace, " "}});
    known.kind = absl::StartsWith(known.bytes, " ") ? TokenKind::kWord : TokenKind::kText;
  }
  info_.vocab_size = static_cast<int32_t>(tokens_.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(const std::string& text,
                                                                    bool add_special_tokens) const {
  absl::StatusOr<std::vector<int32_t>> ids = EncodeAround(splitter_, text, true);
  return ids.ok() && add_special_tokens ? WithSpecialTokens(*std::move(ids)) : ids;
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::EncodeAround(
    const AddedTokenSplitter& splitter, const std::string& text, bool at_text_start) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("text is not valid UTF-8");
  std::vector<int32_t> ids;
  std::string error;
  bool ok = true;
  splitter.Split(text, [&](const TextPart& part) {
    if (part.id != TextPart::kText) {
      ids.push_back(part.id);
    } else if (ok && marks_first_) {
      ok = EncodeMarked(part.text, &ids, &error);
    } else if (ok) {
      const bool has_space = part.text.starts_with(' ') || part.text.starts_with(kVisibleSpace);
      const bool prefix = prefix_each_ || (at_text_start && ids.empty() && !has_space);
      ok = EncodeText(part.text, prefix, &ids, &error);
    }
  });
  if (!ok) return absl::InternalError(absl::StrCat("sentencepiece: ", Quoted(error)));
  return ids;
}

bool SentencePieceTokenizer::EncodeText(std::string_view text, bool prefix,
                                        std::vector<int32_t>* ids, std::string* error) const {
  std::string normalized;
  return Normalize(text, prefix, &normalized, error) && EncodeMarked(normalized, ids, error);
}

bool SentencePieceTokenizer::EncodeMarked(std::string_view text, std::vector<int32_t>* ids,
                                          std::string* error) const {
  const auto first = static_cast<std::ptrdiff_t>(ids->size());
  const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
    return EncodeNormalized(window, tokens, error);
  };
  if (!EncodeInWindows(text, window_bytes_, lookahead_, encode, ids)) return false;
  // Unknown characters in a row are one token.
  const auto both_unknown = [this](int32_t a, int32_t b) { return a == b && a == unk_piece_; };
  ids->erase(std::unique(ids->begin() + first, ids->end(), both_unknown), ids->end());
  return true;
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::EncodeAsText(
    const std::string& text, bool at_text_start) const {
  const absl::StatusOr<std::vector<int32_t>> ids = EncodeAround(spaces_, text, at_text_start);
  if (!ids.ok()) return ids.status();
  std::vector<int32_t> out;
  std::vector<WindowToken> letter;
  std::string error;
  for (const int32_t id : *ids) {
    const auto spelled = user_defined_.find(id);
    const std::string piece = spelled == user_defined_.end() ? "" : spelled->second;
    if (piece.empty()) out.push_back(id);
    for (size_t at = 0; at < piece.size();) {
      const size_t length = NextUtf8(piece.data() + at, piece.size() - at).length;
      letter.clear();
      if (!EncodeNormalized(std::string_view(piece).substr(at, length), &letter, &error)) {
        return absl::InternalError(absl::StrCat("sentencepiece: ", Quoted(error)));
      }
      for (const WindowToken& token : letter) out.push_back(token.id);
      at += length;
    }
  }
  return out;
}

bool SentencePieceTokenizer::Normalize(std::string_view text, bool prefix, std::string* normalized,
                                       std::string* error) const {
  if (normalizer_ == nullptr) {  // the library would take up to 50 times the text's memory
    if (text.empty()) return true;
    *normalized = WithMarks(text, add_dummy_prefix_ && prefix);
    return true;
  }
  if (!normalizer_->Normalize(text, normalized, error)) return false;
  if (!IsValidUtf8(*normalized)) {
    *error = "the normalized text is not valid UTF-8";
    return false;
  }
  if (!(add_dummy_prefix_ && prefix) && absl::StartsWith(*normalized, model_prefix_)) {
    normalized->erase(0, model_prefix_.size());
  }
  return true;
}

bool SentencePieceTokenizer::EncodeNormalized(std::string_view text,
                                              std::vector<WindowToken>* tokens,
                                              std::string* error) const {
  std::vector<WindowToken> pieces;
  if (!model_->Encode(text, &pieces, error)) return false;
  size_t begin = 0;
  for (const WindowToken& piece : pieces) {
    FOX_CHECK(piece.id >= 0 && static_cast<size_t>(piece.id) < tokens_.size());
    FOX_CHECK(piece.end >= begin && piece.end <= text.size());
    if (piece.id == unk_piece_) {
      // The library joins a run of unknown characters: each gets its own token here.
      for (++begin; begin < piece.end; ++begin) {
        if (!IsContinuationByte(text[begin])) tokens->push_back({piece.id, begin});
      }
    }
    tokens->push_back(piece);
    begin = piece.end;
  }
  return true;
}

}  // namespace fox
