// ChunkRule: how prompts are cut into the chunks that steps feed, as an executor's bits allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/paging/paged_kv.h"

namespace fox {

struct ChunkRule {
  // Chunks end at absolute multiples of this, which is a multiple of kPageTokens.
  int64_t unit = kPageTokens;
  // False: the bits computed for a token do not depend on the tokens fed with it, so a chunk may
  // end elsewhere, and generated tokens that are computed again are fed in chunks. True: the bits
  // depend on whether the sequence brings one token to the step or more, and on where its chunks
  // end. Then both follow from the request: a chunk ends at a multiple of `unit` or with the
  // prompt, it has two tokens or more, and generated tokens are decoded.
  bool fixed = false;

  // Tokens that are fed in chunks; `length` tokens are known. The tokens after them are decoded.
  int64_t InChunks(int64_t prompt, int64_t length) const { return fixed ? prompt : length; }
  // Fewest tokens of the next chunk if `left` tokens are to be fed in chunks.
  int64_t Min(int64_t left) const { return !fixed ? 1 : left <= unit + 1 ? left : unit; }
  // The longest chunk of fewer than `left` tokens and at most `count`, if `begin` tokens have been
  // fed; 0: there is none. If `fixed`, it does not leave one token alone, because that token would
  // be decoded.
  int64_t Within(int64_t begin, int64_t left, int64_t count) const {
    int64_t end = (begin + count) / unit * unit;
    if (fixed && end == begin + left - 1) end -= unit;
    return end > begin ? end - begin : fixed ? 0 : count;
  }
  // Tokens, and rows of logits, that a step must have room for beside the decodes of all sequences
  // but one, so that the prompt of the last one goes on.
  int64_t min_room() const { return fixed ? unit + 1 : 1; }
  // Fewest tokens in chunks that a start from a snapshot leaves to compute.
  int64_t min_left() const { return fixed ? 2 : 1; }
};

}  // namespace fox
