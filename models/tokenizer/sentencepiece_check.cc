// The pieces and settings of a ModelProto, field by field. See sentencepiece_check.h; the character
// map has its own file, charsmap_check.cc.
#include "models/tokenizer/sentencepiece_check.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/proto_wire.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

constexpr size_t kMaxPieceBytes = 4096;
// The library has room for this many user-defined pieces that begin at one place.
constexpr size_t kMaxNestedUserPieces = 64;
constexpr uint64_t kBpeModelType = 2;  // TrainerSpec.ModelType

struct Settings {
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string denormalizer_charsmap;
};

absl::Status Error(const std::string& what) { return InvalidFile("tokenizer.model", what); }

// As in protobuf, a field of another wire type than declared is unknown and ignored, the last of
// several values of a scalar counts, and repeated messages merge.
bool ReadPiece(ProtoWire wire, Piece* piece) {
  while (wire.Next()) {
    if (wire.field() == 1 && wire.IsBytes()) piece->text = wire.AsString();
    if (wire.field() == 2 && wire.IsFixed32()) piece->score = wire.AsFloat();
    if (wire.field() == 3 && wire.IsVarint()) {
      const auto type = static_cast<int32_t>(wire.varint());
      if (type >= 1 && type <= 6) piece->type = static_cast<PieceType>(type);
    }
  }
  return !wire.malformed();
}

// A text as the library sees it where it reads a C string: up to the first NUL.
std::string UpToNul(const std::string& text) { return text.substr(0, text.find('\0')); }

bool ReadTrainerSpec(ProtoWire wire, SentencePieceFile* file, Settings* settings) {
  while (wire.Next()) {
    if (wire.field() == 3 && wire.IsVarint()) file->is_bpe = wire.varint() == kBpeModelType;
    if (wire.field() == 24 && wire.IsVarint()) file->spaces_are_suffixes = wire.varint() != 0;
    if (wire.field() == 35 && wire.IsVarint()) file->byte_fallback = wire.varint() != 0;
    if (wire.field() == 44 && wire.IsBytes()) file->unk_surface = UpToNul(wire.AsString());
    if (wire.field() == 46 && wire.IsBytes()) settings->bos_piece = wire.AsString();
    if (wire.field() == 47 && wire.IsBytes()) settings->eos_piece = wire.AsString();
  }
  return !wire.malformed();
}

bool ReadNormalizerSpec(ProtoWire wire, SentencePieceFile* file) {
  while (wire.Next()) {
    if (wire.field() == 2 && wire.IsBytes()) file->charsmap = wire.AsString();
    if (!wire.IsVarint()) continue;
    if (wire.field() == 3) file->add_dummy_prefix = wire.varint() != 0;
    if (wire.field() == 4) file->remove_extra_whitespaces = wire.varint() != 0;
    if (wire.field() == 5) file->escape_whitespaces = wire.varint() != 0;
  }
  return !wire.malformed();
}

bool ReadDenormalizerSpec(ProtoWire wire, Settings* settings) {
  while (wire.Next()) {
    if (wire.field() == 2 && wire.IsBytes()) settings->denormalizer_charsmap = wire.AsString();
  }
  return !wire.malformed();
}

bool ReadModel(const std::string& serialized, SentencePieceFile* file, Settings* settings) {
  ProtoWire wire(serialized, 0, serialized.size());
  while (wire.Next()) {
    if (!wire.IsBytes()) continue;
    bool ok = true;
    if (wire.field() == 1) ok = ReadPiece(wire.AsMessage(), &file->pieces.emplace_back());
    if (wire.field() == 2) ok = ReadTrainerSpec(wire.AsMessage(), file, settings);
    if (wire.field() == 3) ok = ReadNormalizerSpec(wire.AsMessage(), file);
    if (wire.field() == 5) ok = ReadDenormalizerSpec(wire.AsMessage(), settings);
    if (!ok) return false;
  }
  return !wire.malformed();
}

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

absl::Status CheckPieces(SentencePieceFile* file, const Settings& settings) {
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
  file->bos_id = control_id(settings.bos_piece);
  file->eos_id = control_id(settings.eos_piece);
  return CheckUserPieces(file->pieces);
}

}  // namespace

absl::StatusOr<SentencePieceFile> CheckSentencePieceModel(const std::string& serialized) {
  SentencePieceFile file;
  Settings settings;
  if (!ReadModel(serialized, &file, &settings)) return Error("not a sentencepiece model");
  absl::Status status = CheckPieces(&file, settings);
  if (!status.ok()) return status;
  if (!file.charsmap.empty()) status = CheckCharsMap(file.charsmap);
  if (!status.ok()) return status;
  // A denormalizer rewrites decoded text as a whole, across the ends of tokens.
  if (!settings.denormalizer_charsmap.empty()) {
    return absl::UnimplementedError(
        "tokenizer.model: denormalizer_spec with a precompiled_charsmap is not supported");
  }
  file.only_marks_spaces = file.charsmap.empty() && !file.remove_extra_whitespaces &&
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
  std::string model;
  ProtoWire wire(serialized, 0, serialized.size());
  while (wire.Next()) {
    if (wire.field() == 1 || wire.field() == 2) model += wire.AsField();  // pieces, TrainerSpec
  }
  FOX_CHECK(!wire.malformed());
  // NormalizerSpec: no dummy prefix, extra white space stays, spaces stay.
  return model.append("\x1A\x06\x18\x00\x20\x00\x28\x00", 8);
}

}  // namespace fox
