// The sentencepiece library between our checks and our decoding. See sentencepiece_tokenizer.h.
#include "models/tokenizer/sentencepiece_tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/error_text.h"
#include "models/tokenizer/tokenizer_json_writer.h"

namespace fox {
namespace {

constexpr char kVisibleSpace[] = "\xE2\x96\x81";  // how a piece writes a space

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
      return {absl::StrReplaceAll(piece.text, {{kVisibleSpace, " "}}),
              word ? TokenKind::kWord : TokenKind::kText};
    }
  }
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    const std::string& serialized, bool add_bos, int64_t model_vocab_size) {
  absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(serialized);
  if (!file.ok()) return file.status();
  if (static_cast<int64_t>(file->pieces.size()) > model_vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.model: ", file->pieces.size(),
                                                   " pieces, the model's vocabulary has ",
                                                   model_vocab_size));
  }
  std::string error;
  std::unique_ptr<SentencePieceModel> model = SentencePieceModel::Parse(serialized, &error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.model: ", Quoted(error)));
  }
  std::unique_ptr<SentencePieceTokenizer> tokenizer(new SentencePieceTokenizer());
  tokenizer->model_ = std::move(model);
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
  std::vector<int32_t> ids;
  std::string error;
  if (!model_->Encode(text, &ids, &error)) {
    return absl::InternalError(absl::StrCat("sentencepiece: ", Quoted(error)));
  }
  if (add_special_tokens) ids.insert(ids.begin(), info_.prefix.begin(), info_.prefix.end());
  return ids;
}

absl::StatusOr<std::string> SentencePieceTokenizer::ToJson() const {
  const absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(model_->Serialized());
  if (!file.ok()) return file.status();
  return WriteTokenizerJson(*file);
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
