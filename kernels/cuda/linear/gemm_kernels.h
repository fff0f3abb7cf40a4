// The own products of linear layers, which LinearEngine::Run chooses from. A row's bits depend on
// that row, W's and, with a gate, whether it is a decode or a prefill row: not on the number of
// rows, the other rows or the device's size. All enqueue on `stream` and give the first error.
// REQUIRES: at least one row; weight.in % 8 == 0; input rows 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/linear/row_transforms.h"
#include "kernels/interface/linear_params.h"

namespace fox::cuda {

struct DeviceLimits {
  int multiprocessors = 0;
  int block_shared_bytes = 0;  // most shared memory of a block, after opting in
  bool overlaps = false;       // the next kernel's blocks begin beside a kernel's: Hopper
};

inline constexpr int64_t kMaxSmallBatchRows = 8;

// The most rows of SmallBatchGemm, at most kMaxSmallBatchRows: as many rows of `columns` columns as
// fit into shared memory beside W's tiles; 0 from some 81,000 columns on, on cards with 99 KB a
// block from some 16,500.
int64_t SmallBatchRows(int64_t columns, const DeviceLimits& limits);

// The product of at most SmallBatchRows decode rows, but for next_norm: the time of reading W once.
// Its weights are on their way before the previous kernel has ended. With a norm the kernel
// triggers after its wait (launch.h): the next one's weights then come later, which costs nothing
// behind a wide product, for that keeps the memory busy by itself.
cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream);

// True if the current device has the three kernels below, which are Hopper's own (wgmma, TMA).
bool HasClusterGemm();

// The product of any number of decode rows x: W is read once for up to 128 rows, further ones are
// passes of 128. Without params.norm x.rows are params.in. With params.next_norm the outputs are
// left in `next`, which overlaps nothing that is read. `multiprocessors` chooses how many blocks
// share W's columns, which changes no bits.
cudaError_t ClusterGemm(const DeferredNorm& x, const LinearParams& params, const DeferredNorm& next,
                        int multiprocessors, cudaStream_t stream);

// The product with a gate of any number of prefill rows x, bf16 [rows, in], normed already.
// `multiprocessors` chooses tiles, which changes no bits. REQUIRES: output rows 16-byte aligned,
// out.cols % 8 == 0.
cudaError_t PrefillGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream);

// Any product of prefill rows x, bf16 [rows, in], normed already, with any number of outputs, of a
// weight with rows in 8 bits (all of them with a gate). It reads codes as they lie; bits are those
// of a product of W widened to bf16. `multiprocessors` chooses tiles, which changes no bits.
cudaError_t PrefillFp8Gemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                           cudaStream_t stream);

}  // namespace fox::cuda
