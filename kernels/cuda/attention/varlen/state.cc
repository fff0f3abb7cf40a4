// Places the arrays of the state and of the gradients' scratch in the caller's memory.
#include "kernels/cuda/attention/varlen/state.h"

#include <algorithm>

namespace fox::cuda {
namespace {

constexpr size_t kAlignment = 256;

// Allocates arrays one after the other; from a null pointer, it only counts bytes.
class Layout {
 public:
  explicit Layout(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <typename T>
  void Take(T*& array, int64_t count) {
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += static_cast<size_t>(count) * sizeof(T);
    bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

// n sequences that share a row need at most (tokens - n) / 128 + n tiles.
int MaxTiles(const VarlenAttentionParams& params) {
  if (params.tokens <= 0) return 0;
  const int sharing = params.seqs.packed ? std::min(params.seqs.count, params.tokens) : 1;
  const int rows = params.seqs.packed ? 1 : params.seqs.count;
  return rows * ((params.tokens - sharing) / kVarlenTile + sharing);
}

}  // namespace

size_t Assign(const VarlenAttentionParams& params, void* memory, VarlenState& state) {
  state.max_tiles = MaxTiles(params);
  const int64_t head_tiles = int64_t{params.q_heads} * state.max_tiles;
  Layout layout(memory);
  layout.Take(state.num_tiles, 1);
  layout.Take(state.work_counter, 1);
  layout.Take(state.tiles, state.max_tiles);
  layout.Take(state.cum_log_f, head_tiles);
  layout.Take(state.log_f_offset, head_tiles * kVarlenTile);
  layout.Take(state.first_page, head_tiles);
  layout.Take(state.lse, head_tiles * kVarlenTile);
  if (params.acp == AcpMode::kCertified) layout.Take(state.key_sums, head_tiles);
  return layout.bytes();
}

size_t Assign(const VarlenAttentionParams& params, void* memory, VarlenGradients& gradients) {
  const int64_t head_tiles = int64_t{params.q_heads} * MaxTiles(params);
  Layout layout(memory);
  layout.Take(gradients.delta, head_tiles * kVarlenTile);
  layout.Take(gradients.dq, head_tiles * kVarlenTile * params.head_dim);
  layout.Take(gradients.row_sum, head_tiles * kVarlenTile);
  layout.Take(gradients.col_sum, head_tiles * kVarlenTile);
  layout.Take(gradients.last_row_tile, head_tiles);
  layout.Take(gradients.turn, head_tiles);
  layout.Take(gradients.work_counter, 1);
  layout.Take(gradients.gate_sum, head_tiles);
  return layout.bytes();
}

}  // namespace fox::cuda
