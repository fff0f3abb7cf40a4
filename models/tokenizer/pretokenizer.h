// Pretokenizer: cuts text into the pieces that BPE works on, by the patterns of tokenizer.json,
// one after the other. PCRE2 matches them. The reference implementation uses another library, so
// a construct that the two read differently is refused, and characters that are newer than PCRE2's
// version of Unicode are matched as older ones of their kind (unicode_stand_ins.inc).
//
// Cost is linear in the text unless a pattern itself backtracks without end: then the text is
// refused after a number of steps. Read bpe_merger.h next.
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
  // What becomes of a match; the text between matches is a piece.
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  bool prefix_space = false;  // a space before each piece that does not start with one
  std::string pattern;        // "": cuts nothing
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // matches and what is between them change places
};

inline constexpr char kGpt2Pattern[] =
    R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pattern that matches `text` and nothing else.
std::string LiteralPattern(const std::string& text);

// Immutable after construction; Split may be called from any thread.
class Pretokenizer {
 public:
  Pretokenizer() = default;  // a text is one piece
  // Unimplemented: a pattern that is not understood, or one that matches the empty text.
  static absl::StatusOr<Pretokenizer> Create(const std::vector<PretokenizerStep>& steps);

  // What the patterns may backtrack in a text of `size` bytes, beside a fixed number of steps at
  // each place: enough for runs of 2,000 spaces with an unlucky pattern, of any length with usual
  // ones.
  static uint64_t Budget(size_t size) { return 8'000'000 + 8 * uint64_t{size}; }

  using Take = std::function<void(std::string_view)>;
  // Calls `take` with the pieces of `text` (valid UTF-8), in order; they must not be kept.
  // InvalidArgument: a pattern has used up `budget`.
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
