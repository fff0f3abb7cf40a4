// Cuts a ragged batch at absolute 64-token boundaries into the units of work of Append and
// Attention, whose rows share one page per head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/interface/batch_view.h"

namespace fox {

// Rows of one sequence that lie in one 64-token block.
struct RowBlock {
  int seq;
  int64_t first_row;  // in the batch
  int count;
  int64_t position;  // absolute, of the first row
};

inline std::vector<RowBlock> SplitIntoBlocks(const BatchView& batch) {
  std::vector<RowBlock> blocks;
  for (int seq = 0; seq < batch.num_seqs; ++seq) {
    int64_t position = batch.position[seq];
    for (int64_t row = batch.row_begin[seq]; row < batch.row_begin[seq + 1];) {
      const int64_t in_page = kPageTokens - position % kPageTokens;
      const int64_t count = std::min(in_page, batch.row_begin[seq + 1] - row);
      blocks.push_back({seq, row, static_cast<int>(count), position});
      row += count;
      position += count;
    }
  }
  return blocks;
}

}  // namespace fox
