// Pretokenizer: cuts text into the pieces that BPE works on, by the patterns of tokenizer.json, one
// after the other. PCRE2 matches them. The reference implementation uses another library, so a
// construct that the two read differently is refused, and characters that are newer than PCRE2's
// version of Unicode are matched as older characters of their kind (unicode_stand_ins.inc).
//
// Cost is linear in the text. A pattern that backtracks without end is stopped after a number of
// steps, and the text is refused. Read bpe_merger.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace fox {

struct PretokenizerStep {
  // How a match becomes a piece or a part of one. The text between matches is a piece.
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  bool prefix_space = false;  // a space before each piece that does not start with one
  std::string pattern;        // "": cuts nothing
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // matches and the text between them change roles
};

inline constexpr char kGpt2Pattern[] =
    R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A pattern that matches `text` only.
std::string LiteralPattern(const std::string& text);

// Immutable after construction; Split may be called from any thread.
class Pretokenizer {
 public:
  Pretokenizer() = default;  // a text is one piece
  // Unimplemented: a pattern that is not understood or that matches the empty text.
  static absl::StatusOr<Pretokenizer> Create(const std::vector<PretokenizerStep>& steps);

  // Steps of backtracking that patterns may take in a text of `size` bytes, beyond a fixed number
  // at each place. It is enough for runs of 2,000 spaces with an unlucky pattern, and for runs of
  // any length with the usual ones.
  static uint64_t Budget(size_t size) { return 8'000'000 + 8 * uint64_t{size}; }

  using Take = std::function<void(std::string_view)>;
  // Calls `take` with the pieces of `text` (valid UTF-8), in order. A piece is valid during the
  // call only. InvalidArgument: a pattern has used up `budget`.
  absl::Status Split(std::string_view text, uint64_t* budget, const Take& take) const;

 private:
  struct Step {
    PretokenizerStep given;
    std::shared_ptr<const pcre2_real_code_8> code;  // null: cuts nothing
  };
  class Cutter;
  std::vector<Step> steps_;
};

}  // namespace fox
