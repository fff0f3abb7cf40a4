// BatchView: one step's tokens, as every operation sees them.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/core/host_device.h"

namespace fox {

// A token id that stands for the token which Ops::Sample last sampled for the row's slot.
inline constexpr int32_t kLastSampledToken = -1;

// One step's ragged batch: every sequence has one or more consecutive tokens. Sequences with one
// token come first: their rows, [0, num_decodes), are decode rows, the others prefill rows. Arrays
// are readable by the backend. A sequence with slot -1 pads the batch and changes nothing (its one
// row computes garbage that is never read).
//
// A slot appears once, or in decode rows behind one another at consecutive positions of one page,
// none of them the page's last. All but the first of them are drafts: tokens that may turn out not
// to be the sequence's. Then a later step begins at an earlier position, as if they had never been
// (PagedKvShape::history).
struct BatchView {
  int num_seqs = 0;
  int64_t num_rows = 0;                   // tokens of all sequences
  const int32_t* token_ids = nullptr;     // [num_rows]
  const int32_t* slot = nullptr;          // [num_seqs]
  const int64_t* row_begin = nullptr;     // [num_seqs + 1]
  const int64_t* position = nullptr;      // [num_seqs] absolute position of the first row
  const double* log_tolerance = nullptr;  // [num_seqs] log eps; -infinity: nothing is dropped
  // [max_slots], for kLastSampledToken; null: there is none
  const int32_t* sampled_tokens = nullptr;
  // One sequence of one row, at most kSmallBatchTokens long after the step: latency dominates, so a
  // backend may choose other kernels, with the same bits.
  bool small = false;
  int num_decodes = 0;  // sequences with one row; the others have two or more
  // No sequence has more tokens after the step; all that the host knows about positions.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();

  bool all_decodes() const { return num_decodes == num_seqs; }
  FOX_HOST_DEVICE bool is_draft(int seq) const {
    return seq > 0 && slot[seq] >= 0 && slot[seq] == slot[seq - 1];
  }
};

inline constexpr int64_t kSmallBatchTokens = 8192;

}  // namespace fox
