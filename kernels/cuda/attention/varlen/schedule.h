// The schedule of both directions of varlen attention: the list of tiles, cumulative gates, and
// each tile's first visible page. Computed on the device, for any mix of lengths.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/varlen_attention.h"

namespace fox::cuda {

// Lower clamp of log gates: keys before such a gate weigh nothing beside logits within 400 of each
// other, and the offsets of its tile stay accurate to 2^-14. A gate of -infinity thus cuts a
// sequence.
inline constexpr double kLeastLogGate = -1024;

// Fills all of `state` but lse. Sequences are cut off at `tokens`. A gate above 0 breaks the bounds
// of pruning, and nothing else; with a NaN gate a head prunes nothing in that sequence. Reads
// params.k under AcpMode::kCertified alone. Enqueues on `stream`; returns the launch's error.
cudaError_t ScheduleVarlen(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream);

}  // namespace fox::cuda
