// The pieces and settings of a ModelProto, as protobuf reads it. See sentencepiece_check.h.
#include "models/tokenizer/sentencepiece_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/utf8.h"
#include "sentencepiece_model.pb.h"

namespace fox {
namespace {

constexpr size_t kMaxPieceBytes = 4096;
// The library has room for this many user-defined pieces that begin at one place.
constexpr size_t kMaxNestedUserPieces = 64;
constexpr size_t kMaxTrieBytes = size_t{8} << 20;
constexpr size_t kMaxReplacementBytes = 1024;
constexpr int kMaxKeyBytes = 1024;
// The library has room for this many entries that begin at one place.
constexpr int kMaxMatches = 32;

absl::Status Error(const std::string& what) { return InvalidFile("tokenizer.model", what); }

// The byte of a piece <0xHH>, -1 for anything else.
int ByteOfPiece(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  if (text.size() != 6 || text.compare(0, 3, "<0x") != 0 || text[5] != '>') return -1;
  int byte = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char* digit = std::find(kDigits, kDigits + 16, text[i]);
    if (digit == kDigits + 16) return -1;
    byte = byte * 16 + static_cast<int>(digit - kDigits);
  }
  return byte;
}

absl::Status CheckPiece(const Piece& piece, size_t id) {
  const auto error = [id](const char* what) { return Error(absl::StrCat("piece ", id, what)); };
  if (piece.text.empty()) return error(" is empty");
  if (piece.text.size() > kMaxPieceBytes) return error(" is longer than 4096 bytes");
  if (piece.text.find('\0') != std::string::npos) return error(" holds a NUL");
  if (!IsValidUtf8(piece.text)) return error(" is not valid UTF-8");
  if (!std::isfinite(piece.score)) return error(" has a score that is not finite");
  return absl::OkStatus();
}

absl::Status CheckUserPieces(const std::vector<Piece>& pieces) {
  std::vector<const std::string*> sorted, nested;
  for (const Piece& piece : pieces) {
    if (piece.type == PieceType::kUserDefined) sorted.push_back(&piece.text);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return *a < *b; });
  for (const std::string* text : sorted) {
    while (!nested.empty() && text->compare(0, nested.back()->size(), *nested.back()) != 0) {
      nested.pop_back();
    }
    nested.push_back(text);
    if (nested.size() > kMaxNestedUserPieces) return Error("user-defined pieces nest too deeply");
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(SentencePieceFile* file, const sentencepiece::TrainerSpec& trainer) {
  absl::flat_hash_map<std::string, int32_t> id_of_text;
  int unknown_pieces = 0;
  size_t byte_pieces = 0;
  for (size_t id = 0; id < file->pieces.size(); ++id) {
    const Piece& piece = file->pieces[id];
    if (absl::Status status = CheckPiece(piece, id); !status.ok()) return status;
    if (!id_of_text.emplace(piece.text, static_cast<int32_t>(id)).second) {
      return Error(absl::StrCat("piece ", Quoted(piece.text), " is there twice"));
    }
    if (piece.type == PieceType::kUnknown) {
      ++unknown_pieces;
      file->unk_id = static_cast<int32_t>(id);
    }
    if (piece.type == PieceType::kByte) {
      ++byte_pieces;
      if (ByteOfPiece(piece.text) < 0) {
        return Error(absl::StrCat("piece ", Quoted(piece.text), " is not a byte"));
      }
    }
  }
  if (!IsValidUtf8(file->unk_surface)) return Error("unk_surface is not valid UTF-8");
  if (unknown_pieces != 1) return Error(absl::StrCat(unknown_pieces, " unknown pieces, not 1"));
  // Distinct and each of the form <0xHH>: 256 are all bytes.
  const size_t expected = file->byte_fallback ? 256 : 0;
  if (byte_pieces != expected) {
    return Error(absl::StrCat(byte_pieces, " byte pieces, not ", expected));
  }
  const auto control_id = [&](const std::string& text) -> std::optional<int32_t> {
    const auto it = id_of_text.find(text);
    if (it == id_of_text.end()) return std::nullopt;
    const Piece& piece = file->pieces[static_cast<size_t>(it->second)];
    if (piece.type != PieceType::kControl) return std::nullopt;
    return it->second;
  };
  file->bos_id = control_id(trainer.bos_piece());
  file->eos_id = control_id(trainer.eos_piece());
  return CheckUserPieces(file->pieces);
}

// --- The character map ---

// A trie as a double array. A state is the index that a unit's offset leads to; the unit of byte b
// is at state ^ b.
class Trie {
 public:
  explicit Trie(std::vector<uint32_t> units) : units_(std::move(units)) {
    FOX_CHECK(!units_.empty() && units_.size() % 256 == 0);
  }
  bool IsSound() { return Entries(Offset(units_[0]), 0) != kBroken; }

 private:
  static constexpr int kNew = -1, kBroken = -2;
  static uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

  // The most entries on a path from `state`, which is `depth` bytes away from the root. kBroken: a
  // state is outside the array, a path is too long or a cycle, or has too many entries.
  int Entries(uint32_t state, int depth) {
    if (state >= units_.size() || depth > kMaxKeyBytes) return kBroken;
    if (entries_[state] != kNew) return entries_[state];
    int most = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t child = state ^ byte, unit = units_[child];
      if ((unit & 0x800000FFu) != byte) continue;
      const int behind = Entries(child ^ Offset(unit), depth + 1);
      if (behind == kBroken) return kBroken;
      most = std::max(most, behind + static_cast<int>(unit >> 8 & 1u));
    }
    return entries_[state] = most <= kMaxMatches ? most : kBroken;
  }

  std::vector<uint32_t> units_;
  std::vector<int> entries_ = std::vector<int>(units_.size(), kNew);  // by state: see Entries
};

}  // namespace

absl::Status CheckCharsMap(const std::string& charsmap) {
  const auto error = [](const char* what) { return Error(absl::StrCat("character map: ", what)); };
  constexpr size_t kHeader = 4;
  static_assert(std::endian::native == std::endian::little, "as the map");
  if (charsmap.size() < kHeader) return error("truncated");
  uint32_t trie_bytes = 0;
  std::memcpy(&trie_bytes, charsmap.data(), kHeader);
  // Whole blocks of 256 units: then all units of a state inside the array are inside, too.
  if (trie_bytes == 0 || trie_bytes % 1024 != 0 || trie_bytes > kMaxTrieBytes) {
    return error("size of the trie");
  }
  if (trie_bytes >= charsmap.size() - kHeader) return error("truncated");
  if (charsmap.back() != '\0') return error("replacements are not terminated");
  size_t replacement = 0;
  for (size_t at = kHeader + trie_bytes; at < charsmap.size(); ++at) {
    replacement = charsmap[at] == '\0' ? 0 : replacement + 1;
    if (replacement > kMaxReplacementBytes) return error("a replacement is too long");
  }
  std::vector<uint32_t> units(trie_bytes / 4);
  std::memcpy(units.data(), charsmap.data() + kHeader, trie_bytes);
  if (!Trie(std::move(units)).IsSound()) return error("broken trie");
  return absl::OkStatus();
}

absl::StatusOr<SentencePieceFile> CheckSentencePieceModel(const std::string& serialized) {
  sentencepiece::ModelProto model;
  if (!model.ParseFromString(serialized)) return Error("not a sentencepiece model");
  SentencePieceFile file;
  for (const auto& piece : model.pieces()) {
    file.pieces.push_back({piece.piece(), piece.score(), static_cast<PieceType>(piece.type())});
  }
  const sentencepiece::TrainerSpec& trainer = model.trainer_spec();
  file.unk_surface = trainer.unk_surface().c_str();  // the library reads it up to a NUL
  file.byte_fallback = trainer.byte_fallback();
  file.is_bpe = trainer.model_type() == sentencepiece::TrainerSpec::BPE;
  file.spaces_are_suffixes = trainer.treat_whitespace_as_suffix();
  const sentencepiece::NormalizerSpec& normalizer = model.normalizer_spec();
  file.add_dummy_prefix = normalizer.add_dummy_prefix();
  file.remove_extra_whitespaces = normalizer.remove_extra_whitespaces();
  file.escape_whitespaces = normalizer.escape_whitespaces();
  absl::Status status = CheckPieces(&file, trainer);
  if (!status.ok()) return status;
  const std::string& charsmap = normalizer.precompiled_charsmap();
  if (!charsmap.empty()) status = CheckCharsMap(charsmap);
  if (!status.ok()) return status;
  // A denormalizer rewrites decoded text as a whole, across the ends of tokens.
  if (!model.denormalizer_spec().precompiled_charsmap().empty()) {
    return absl::UnimplementedError(
        "tokenizer.model: denormalizer_spec with a precompiled_charsmap is not supported");
  }
  file.only_marks_spaces = charsmap.empty() && !file.remove_extra_whitespaces &&
                           file.escape_whitespaces && !file.spaces_are_suffixes;
  for (Piece& piece : file.pieces) {  // decoding needs the byte itself
    if (piece.type != PieceType::kByte) continue;
    const int byte = ByteOfPiece(piece.text);
    FOX_CHECK(byte >= 0 && byte < 256);
    piece.text = std::string(1, static_cast<char>(byte));
  }
  return file;
}

std::string WithoutNormalizer(const std::string& serialized) {
  sentencepiece::ModelProto model;
  FOX_CHECK(model.ParseFromString(serialized));
  model.clear_self_test_data();
  model.clear_denormalizer_spec();
  sentencepiece::NormalizerSpec& normalizer = *model.mutable_normalizer_spec();
  normalizer.Clear();
  normalizer.set_add_dummy_prefix(false);
  normalizer.set_remove_extra_whitespaces(false);
  normalizer.set_escape_whitespaces(false);
  return model.SerializeAsString();
}

}  // namespace fox
