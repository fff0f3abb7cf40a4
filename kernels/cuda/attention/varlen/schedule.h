// What both directions of varlen attention need before their kernels: the list of tiles, cumulative
// gates, and where each tile's view begins. All on the device, for any mix of lengths.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/varlen_attention.h"

namespace fox::cuda {

// Log gates are taken to be at least this: what lies behind such a gate weighs nothing beside
// logits within 400 of each other, and the offsets of its tile stay good to 2^-14. A gate of
// -infinity thus cuts a sequence.
inline constexpr double kLeastLogGate = -1024;

// Fills all of `state` but lse. Sequences are cut off at `tokens`. A gate above 0 breaks the bounds
// of pruning, and nothing else; with a NaN gate a head prunes nothing in that sequence. Reads
// params.k under AcpMode::kCertified alone. Enqueues on `stream`; gives the launch's error.
cudaError_t ScheduleVarlen(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream);

}  // namespace fox::cuda
