// A sequence's token range in its batch row, cut off at the row's ends because the list of
// sequences comes unchecked from the caller's device memory.
#pragma once

#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

struct SequenceRange {
  int begin, end;
};

__device__ __forceinline__ SequenceRange RangeOf(const VarlenSequences& seqs, int tokens, int seq) {
  if (seqs.begin == nullptr) return {0, tokens};
  const int begin = min(max(seqs.begin[seq], 0), tokens);
  return {begin, max(begin, min(seqs.end[seq], tokens))};
}

}  // namespace fox::cuda
