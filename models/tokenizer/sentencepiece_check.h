// CheckSentencePieceModel checks a model file before the sentencepiece library loads it, because
// the library reads out of bounds on hostile models and its own checks come too late. Read
// sentencepiece_tokenizer.h next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fox {

// The numbers of ModelProto.SentencePiece.Type.
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

// The properties of a model that our own code needs.
struct SentencePieceFile {
  std::vector<Piece> pieces;  // by id
  int32_t unk_id = 0;
  std::optional<int32_t> bos_id, eos_id;
  std::string unk_surface;  // the text of the unknown piece
  bool byte_fallback = false;
  bool is_bpe = false;
  bool add_dummy_prefix = false;
  bool remove_extra_whitespaces = false;
  bool escape_whitespaces = false;
  bool spaces_are_suffixes = false;
  // True if normalization only replaces spaces by U+2581 and, with add_dummy_prefix, puts one in
  // front.
  bool only_marks_spaces = false;
};

// InvalidArgument: not a ModelProto; an empty, over-long, duplicate or ill-formed piece; a score
// that is not finite; no or several unknown pieces, or an ill-formed unk_surface; byte pieces that
// are not exactly 256; user pieces that nest too deeply; a broken character map. Unimplemented: a
// character map for decoded text.
absl::StatusOr<SentencePieceFile> CheckSentencePieceModel(const std::string& serialized);

// The model with the same pieces, but without normalization: for text that is already normalized.
// REQUIRES: CheckSentencePieceModel accepts `serialized`.
std::string WithoutNormalizer(const std::string& serialized);

// Checks a precompiled_charsmap: the uint32 size of the trie, the trie as a double array of uint32
// units, then NUL-terminated replacements. Every path through an accepted trie stays inside it,
// ends after 1,024 bytes at most, and has no more entries than the library has room for.
absl::Status CheckCharsMap(const std::string& charsmap);

}  // namespace fox
