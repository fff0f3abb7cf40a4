// Prefill attention with ACP over per-head pages: the KV loop of a 128-row tile runs from its
// diagonal to the left, down to the boundary found by PruneBoundaries, or, under the certified
// bound, until the rows' own denominators prove the rest negligible (acp.md 2d). Two kernels with
// one contract:
//   PrefillSm90  wgmma, TMA, warp specialisation, persistent: Hopper
//   PrefillSm80  mma.sync, cp.async: every tensor-core GPU since Ampere
// Both read keys, values, gates and boundaries from a source: the server's pages, or, for training,
// arrays and their VarlenState.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

// The rows of schedule.tiles; q, out: bf16; pages: bf16, [64, head_dim], or in schedule.wide; lse
// float32 or empty. Reads schedule.boundary (PruneBoundaries comes first) and no page left of it. A
// tile's result depends on its rows, the keys up to them and its boundary alone, provided that
// schedule.key_splits has memory; PrefillSm80 splits nothing. Adds to blocks_total and
// blocks_pruned by (row, head, page): a tile's rows skip the pages left of the leftmost page that
// the tile visited. `max_tiles` as for PruneBoundaries. REQUIRES: head_dim 32, 64 or 128
// (PrefillSm80 also 16); q, out and transform.gate and their rows 16-byte aligned. Enqueue on
// `stream`; return the launch's error.
cudaError_t PrefillSm90(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, int max_tiles, cudaStream_t stream);
cudaError_t PrefillSm80(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, int max_tiles, cudaStream_t stream);

// Fills schedule.wide with the live pages of its lists in `layer`, and zeroes tile_counter; comes
// before one of the two where it has pages, which then attend to those lists alone. Enqueues on
// `stream`; gives the launch's error.
cudaError_t WidenPages(const BatchView& batch, const PagedKv& kv, int layer,
                       const StepSchedule& schedule, cudaStream_t stream);

// Prefill attention over the arrays params.q, k, v: writes params.out (rows of sequences only) and
// state.lse; reads the tiles, gates and first_page of the state, which its schedule has filled, and
// counts work_counter up from zero. Keys and values past a sequence's end may be anything.
// REQUIRES: head_dim 32, 64 or 128; q_heads a multiple of kv_heads; views 16-byte aligned, strides
// multiples of 8. Enqueue on `stream`; return the launch's error.
cudaError_t VarlenPrefillSm90(const VarlenAttentionParams& params, const VarlenState& state,
                              cudaStream_t stream);
cudaError_t VarlenPrefillSm80(const VarlenAttentionParams& params, const VarlenState& state,
                              cudaStream_t stream);

// True if this binary holds PrefillSm90 or VarlenPrefillSm90 for the current device: their
// instructions exist in code compiled for sm_90a only, and elsewhere, PTX compiled at load time
// included, the kernels trap.
bool HasPrefillSm90();
bool HasVarlenPrefillSm90();

}  // namespace fox::cuda
