// Limits of the CUDA kernels. Plain host code without a GPU or its headers, so that a server
// refuses a model before it allocates anything, and kernels check the same numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kernels/interface/workload.h"

namespace fox::cuda {

inline constexpr int kMaxSeqs = 2048;                  // prefix sums over them are in shared memory
inline constexpr int kMaxGroup = 16;                   // query heads of a kv head: Evict's windows
inline constexpr int64_t kMaxRows = int64_t{1} << 20;  // of a step: a field of BeginStep's scan
inline constexpr int64_t kMaxVocab = int64_t{1} << 30;  // Sample packs ids into keys
inline constexpr int64_t kMaxTokens = (int64_t{1} << 31) - kPageTokens;  // positions are int32
static_assert(kMaxSeqs % 32 == 0);                                       // so padding stays within
inline constexpr int64_t kRowMultiple = 8;  // elements of a row: 16 bytes of bf16

// Why the kernels cannot run this, in one line that names the number; nothing: they can.
inline std::optional<std::string> Unsupported(const Workload& load) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  const auto too_many = [&](const char* what, int64_t asked, int64_t most) {
    return "at most " + text(most) + " " + what + " on a GPU, not " + text(asked);
  };
  const PagedKvShape& shape = load.shape;
  if (const int d = shape.head_dim; d != 16 && d != 32 && d != 64 && d != 128) {
    return "head size " + text(d) + ": on a GPU it must be 16, 32, 64 or 128";
  }
  if (shape.group() > kMaxGroup) {
    return too_many("query heads for each kv head", shape.group(), kMaxGroup);
  }
  for (const auto& [what, size] :
       {std::pair{"hidden", load.hidden_size}, std::pair{"intermediate", load.intermediate_size}}) {
    if (size % kRowMultiple == 0) continue;
    return std::string(what) + " size " + text(size) + ": on a GPU it must be a multiple of " +
           text(kRowMultiple);
  }
  if (load.vocab_size > kMaxVocab)
    return too_many("tokens in a vocabulary", load.vocab_size, kMaxVocab);
  if (load.max_seqs > kMaxSeqs) return too_many("sequences at once", load.max_seqs, kMaxSeqs);
  if (load.max_rows > kMaxRows) return too_many("tokens in one step", load.max_rows, kMaxRows);
  if (const int64_t tokens = int64_t{shape.max_pages} * kPageTokens; tokens > kMaxTokens) {
    return too_many("tokens in one sequence", tokens, kMaxTokens);
  }
  return std::nullopt;
}

}  // namespace fox::cuda
