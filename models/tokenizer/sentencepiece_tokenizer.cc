// The sentencepiece library between our checks and our decoding. See sentencepiece_tokenizer.h.
#include "models/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/error_text.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

// How far the symbols that merging begins with depend on the text after them: the longest piece
// that is found before merging. None: models other than BPE score whole texts, and unused pieces
// are split as they were merged last, anywhere in the text.
std::optional<size_t> LookaheadOf(const SentencePieceFile& file) {
  if (!file.is_bpe) return std::nullopt;
  size_t longest = 0;
  for (const Piece& piece : file.pieces) {
    if (piece.type == PieceType::kUnused) return std::nullopt;
    if (piece.type == PieceType::kUserDefined) longest = std::max(longest, piece.text.size());
  }
  return longest;
}

}  // namespace

SentencePieceTokenizer::Token SentencePieceTokenizer::TokenOf(const Piece& piece,
                                                              const std::string& unk_surface) {
  switch (piece.type) {
    case PieceType::kUnknown:
      return {unk_surface};
    case PieceType::kControl:
      return {piece.text, TokenKind::kText, true};
    case PieceType::kByte:
      return {piece.text, TokenKind::kBytes};
    default: {
      const bool word = absl::StartsWith(piece.text, kVisibleSpace);
      Token token{absl::StrReplaceAll(piece.text, {{kVisibleSpace, " "}}),
                  word ? TokenKind::kWord : TokenKind::kText};
      if (piece.type == PieceType::kUserDefined && !IsWhiteSpace(token.bytes)) {
        token.user_defined = piece.text;
      }
      return token;
    }
  }
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    const std::string& serialized, bool add_bos, int64_t model_vocab_size, size_t window_bytes) {
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
  tokenizer->add_dummy_prefix_ = file->add_dummy_prefix;
  if (tokenizer->model_ == nullptr) return InvalidFile("tokenizer.model", Quoted(error));
  tokenizer->window_bytes_ = window_bytes;
  tokenizer->lookahead_ = LookaheadOf(*file);
  Info& info = tokenizer->info_;
  info.kind = "sentencepiece";
  info.vocab_size = static_cast<int32_t>(file->pieces.size());
  info.bos_id = file->bos_id;
  info.eos_id = file->eos_id;
  info.unk_id = file->unk_id;
  if (add_bos && info.bos_id.has_value()) info.prefix = {*info.bos_id};
  info.strip_leading_space = file->add_dummy_prefix || file->remove_extra_whitespaces;
  info.strip_all_leading_spaces = file->remove_extra_whitespaces;
  info.replacement = Utf8Replacement::kByte;
  for (const Piece& piece : file->pieces) {
    tokenizer->tokens_.push_back(TokenOf(piece, file->unk_surface));
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(const std::string& text,
                                                                    bool add_special_tokens) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("text is not valid UTF-8");
  std::string normalized, error;
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = info_.prefix;
  const size_t first = ids.size();
  bool ok = Normalize(text, &normalized, &error);
  if (ok) {
    const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
      return EncodeNormalized(window, tokens, &error);
    };
    ok = EncodeInWindows(normalized, window_bytes_, lookahead_, encode, &ids);
  }
  if (!ok) return absl::InternalError(absl::StrCat("sentencepiece: ", Quoted(error)));
  // Unknown characters in a row are one token.
  const auto both_unknown = [this](int32_t a, int32_t b) { return a == b && a == info_.unk_id; };
  ids.erase(std::unique(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), both_unknown),
            ids.end());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::EncodeAsText(
    const std::string& text, bool /*at_text_start*/) const {
  const absl::StatusOr<std::vector<int32_t>> ids = Encode(text, false);
  if (!ids.ok()) return ids.status();
  std::vector<int32_t> out;
  std::vector<WindowToken> letter;
  std::string error;
  for (const int32_t id : *ids) {
    const std::string& piece = tokens_[static_cast<size_t>(id)].user_defined;
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

bool SentencePieceTokenizer::Normalize(const std::string& text, std::string* normalized,
                                       std::string* error) const {
  if (normalizer_ == nullptr) {  // the library would take up to 50 times the text's memory
    if (text.empty()) return true;
    *normalized = absl::StrReplaceAll(text, {{" ", kVisibleSpace}});
    if (add_dummy_prefix_) normalized->insert(0, kVisibleSpace);
    return true;
  }
  if (!normalizer_->Normalize(text, normalized, error)) return false;
  if (IsValidUtf8(*normalized)) return true;
  *error = "the normalized text is not valid UTF-8";
  return false;
}

bool SentencePieceTokenizer::EncodeNormalized(std::string_view text,
                                              std::vector<WindowToken>* tokens,
                                              std::string* error) const {
  std::vector<WindowToken> pieces;
  if (!model_->Encode(text, &pieces, error)) return false;
  size_t begin = 0;
  for (const WindowToken& piece : pieces) {
    if (piece.id == info_.unk_id) {
      // Each character of an unknown run was a symbol by itself.
      for (++begin; begin < piece.end; ++begin) {
        if (!IsContinuationByte(text[begin])) tokens->push_back({piece.id, begin});
      }
    }
    tokens->push_back(piece);
    begin = piece.end;
  }
  return true;
}

std::string SentencePieceTokenizer::TokenBytes(int32_t id, bool skip_special) const {
  if (id < 0 || id >= info_.vocab_size) return "";
  const Token& token = tokens_[static_cast<size_t>(id)];
  return skip_special && token.control ? std::string() : token.bytes;
}

Tokenizer::TokenKind SentencePieceTokenizer::KindOf(int32_t id) const {
  if (id < 0 || id >= info_.vocab_size) return TokenKind::kText;
  return tokens_[static_cast<size_t>(id)].kind;
}

}  // namespace fox
