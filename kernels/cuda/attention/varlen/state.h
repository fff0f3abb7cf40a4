// Device arrays that the kernels of varlen attention share. Tokens are counted in tiles of 128 that
// begin where their sequence begins; arrays over tokens are padded to whole tiles and ordered
// [q_heads][max_tiles][128].
//
// The backward call needs the state of its forward call in addition to q, k, v and out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

inline constexpr int kVarlenTile = 128;  // tokens
inline constexpr int kVarlenPage = 64;   // keys: the unit of pruning, half a tile

// Tile t of the list. A sequence's tiles follow each other in the list.
struct VarlenTile {
  int32_t seq, batch;
  int32_t first_token;          // in the batch row
  int32_t count;                // tokens, 1 to 128
  int32_t position;             // of the first token in its sequence, a multiple of 128
  int32_t seq_first, seq_last;  // the sequence's first and last tile in the list
};

// Sums over a tile's keys for a query head, for the certified bound; private to the schedule.
struct VarlenKeySums {
  double page_log_mass[2];  // log sum_j exp(a_j - c_j) of each page; then E of kernels/paging/acp.h
  double threshold;         // c_e + beta_e at the tile's end e; then t of kernels/paging/acp.h
  double decay;             // exp(c_e - c of the last tile's end); 0 for a sequence's first tile
  float count;              // sum_j exp(c_e - c_j)
  float max_key_norm;       // of the tile's keys; then of all keys up to the tile's end
};

struct VarlenState {
  int max_tiles = 0;             // of any sequences with these parameters, at most
  int32_t* num_tiles = nullptr;  // [1]
  VarlenTile* tiles = nullptr;   // [max_tiles]
  // c_j = cum_log_f + log_f_offset: cum_log_f is c before the tile's first token's gate, the offset
  // sums the tile's gates up to j's own (j = 0 has one). Past the sequence's end: the last one's.
  double* cum_log_f = nullptr;    // [q_heads][max_tiles]
  float* log_f_offset = nullptr;  // [q_heads][max_tiles][128], natural units
  // First page that a row tile sees, counted in its sequence; it does not fall along a sequence.
  int32_t* first_page = nullptr;  // [q_heads][max_tiles]
  // log2 of a row's denominator, sink included, its logits in log2 units and relative to c_ref = c
  // of its tile's first token: log2 (2^(log2(e) (sink + c_ref - c_i)) + sum_j 2^(log2(e) (scale
  // q_i.k_j + c_ref - c_j))). Past the end: +infinity.
  float* lse = nullptr;             // [q_heads][max_tiles][128]
  int32_t* work_counter = nullptr;  // [1], zeroed by the schedule
  // [q_heads][max_tiles], AcpMode::kCertified alone. Until the forward kernel writes lse, its first
  // head_dim floats of a tile are sum_j exp(c_e - c_j) k_j.
  VarlenKeySums* key_sums = nullptr;

  // Index into arrays [q_heads][max_tiles], here and in VarlenGradients.
  FOX_HOST_DEVICE int64_t HeadTile(int head, int tile) const {
    return static_cast<int64_t>(head) * max_tiles + tile;
  }
  // c_i - c_ref of a tile's row; `index`: its HeadTile.
  FOX_HOST_DEVICE double RowDecay(int64_t index, int row) const {
    const float* offset = log_f_offset + index * kVarlenTile;
    return static_cast<double>(offset[row]) - static_cast<double>(offset[0]);
  }
};

// Scratch of a backward call.
struct VarlenGradients {
  float* delta = nullptr;  // [q_heads][max_tiles][128]: sum of d_out * out of a row; 0 past the end
  // Sums over key tiles, zeroed before: of dS K, not scaled, and of a row's dS.
  float* dq = nullptr;       // [q_heads][max_tiles][128][head_dim]
  float* row_sum = nullptr;  // [q_heads][max_tiles][128]: sum_j dS_ij
  float* col_sum = nullptr;  // [q_heads][max_tiles][128]: sum_i dS_ij, written by its key tile
  // The last row tile (in the list) that sees a key tile.
  int32_t* last_row_tile = nullptr;  // [q_heads][max_tiles]
  // Deterministic: key tiles that have added to a row tile so far, zeroed before. Key tile n adds
  // to row tile m when turn is m - n.
  int32_t* turn = nullptr;          // [q_heads][max_tiles]
  int32_t* work_counter = nullptr;  // [1], zeroed before
  double* gate_sum = nullptr;       // [q_heads][max_tiles]: of d_log_fgate's scan
};

// Places the arrays in device memory (256-byte aligned; null: nowhere). Returns the bytes that they
// take.
size_t Assign(const VarlenAttentionParams& params, void* memory, VarlenState& state);
size_t Assign(const VarlenAttentionParams& params, void* memory, VarlenGradients& gradients);

// Bytes of a VarlenState or VarlenGradients; and such arrays, placed in `memory`.
template <typename Arrays>
size_t VarlenBytes(const VarlenAttentionParams& params) {
  Arrays nowhere;
  return Assign(params, nullptr, nowhere);
}
template <typename Arrays>
Arrays MakeVarlen(const VarlenAttentionParams& params, void* memory) {
  Arrays arrays;
  Assign(params, memory, arrays);
  return arrays;
}

}  // namespace fox::cuda
