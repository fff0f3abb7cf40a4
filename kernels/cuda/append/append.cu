// Ops::Append: checks the shapes and launches one kernel for decode rows (decode.cu) and three for
// prefill rows (prefill.cu, accumulate.cu, queries.cu), in any mixture: each kind of row has its
// own order of sums.
#include "kernels/core/check.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/runtime/beside_stream.h"

namespace fox::cuda {

cudaError_t Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                   const StepSchedule& schedule, const AppendOverlap& overlap, cudaStream_t stream,
                   BesideStream* beside) {
  if (batch.num_seqs == 0) return cudaSuccess;
  const MatrixView& projection = params.projection;
  FOX_CHECK(projection.dtype == DType::kBF16 &&
            (kv.shape.dtype == DType::kBF16 || kv.shape.dtype == DType::kE4M3));
  FOX_CHECK(projection.rows >= batch.num_rows && projection.row_stride % 8 == 0);
  FOX_CHECK(params.q_column % 8 == 0 && params.k_column % 8 == 0 && params.v_column % 8 == 0);
  FOX_CHECK(kv.shape.group() <= kMaxAppendGroup);
  FOX_CHECK((params.q_norm == nullptr || params.q_cap == nullptr) &&
            (params.k_norm == nullptr || params.k_cap == nullptr));
  if (batch.num_rows == batch.num_seqs) {
    return AppendDecode(batch, params, kv, overlap, stream);
  }
  if (batch.num_decodes > 0) {
    BatchView decodes = batch;
    decodes.num_seqs = batch.num_decodes;
    decodes.num_rows = batch.num_decodes;
    const AppendOverlap waits{.carveout = OverlapCarveout(decodes.num_rows)};
    const cudaError_t decoded = AppendDecode(decodes, params, kv, waits, stream);
    if (decoded != cudaSuccess) return decoded;
    const cudaError_t marked = beside == nullptr ? cudaSuccess : beside->Mark(stream);
    if (marked != cudaSuccess) return marked;
  }
  const cudaError_t projected = ProjectBlocks(batch, params, kv, schedule, stream);
  if (projected != cudaSuccess) return projected;
  const cudaError_t accumulated = AccumulateBlocks(batch, params, kv, schedule, stream);
  if (accumulated != cudaSuccess) return accumulated;
  return ProjectQueries(batch, params, kv, stream);
}

}  // namespace fox::cuda
