// Which tokens of its batch row a sequence holds, cut off at the row's ends: a list of sequences
// comes from the caller's device memory, where nobody has checked it.
#pragma once

#include "kernels/varlen_attention.h"

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
