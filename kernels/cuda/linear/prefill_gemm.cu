// Tiles of 128 rows of x and of 128 or 64 outputs, which take 256 or 128 rows of W: a block on
// every SM goes on from tile to tile. Two warpgroups multiply 64 rows each; one thread of a third
// copies by TMA, tiles ahead, into a ring of chunks of 64 columns. A finished tile's sums wait in
// registers, rounded: its activations and stores run while the next one is multiplied.
//
// Bits (prefill_gemm.md): columns are summed from left to right, 16 at a time, in one chain from
// zero, whatever the tile and wherever the row stands in it; then the halves meet as in GateRows.
#include <algorithm>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/prefill_gemm.cuh"
#include "kernels/cuda/linear/prefill_gemm.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace prefill_gemm;

using WidePlan = TilePlan<128>;
using NarrowPlan = TilePlan<64>;

int CeilDiv(int a, int b) { return (a + b - 1) / b; }

template <typename Plan>
cudaError_t LaunchPlan(PrefillGemmArguments a, const MatrixView& x, const DeviceWeight& weight,
                       const MatrixView& y, int multiprocessors, cudaStream_t stream) {
  a.columns = CeilDiv(a.out, Plan::kOutputs);
  a.row_tiles = CeilDiv(a.rows, kTileRows);
  cudaError_t error = EncodeMatrixMap(const_cast<void*>(weight.data()), weight.out(), weight.in(),
                                      weight.in(), Plan::kOutputs, kTileCols, &a.weight_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(x.data, x.rows, x.cols, x.row_stride, kTileRows, kTileCols, &a.x_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(y.data, y.rows, y.cols, y.row_stride, kGroupRows, kBoxOutputs, &a.y_map);
  if (error != cudaSuccess) return error;
  const auto kernel = PrefillGemmKernel<Plan>;
  error = AllowDynamicSmem<Plan::kSmemBytes, kHopperSmem>(KernelAddress(kernel));
  if (error != cudaSuccess) return error;
  const int blocks = std::min(a.columns * a.row_tiles, multiprocessors);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                SmemConfig(static_cast<size_t>(Plan::kSmemBytes)), stream, a);
}

// Tiles that the busiest block computes.
template <typename Plan>
int RoundsOf(const PrefillGemmArguments& a, int multiprocessors) {
  return CeilDiv(CeilDiv(a.rows, kTileRows) * CeilDiv(a.out, Plan::kOutputs), multiprocessors);
}

// A narrow tile takes 13% more than half of a wide one's time.
bool TakesNarrow(const PrefillGemmArguments& a, int multiprocessors) {
  return 113 * RoundsOf<NarrowPlan>(a, multiprocessors) <
         200 * RoundsOf<WidePlan>(a, multiprocessors);
}

}  // namespace

cudaError_t PrefillGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream) {
  const DeviceWeight& weight = OnDevice(params.weight);
  const MatrixView& y = params.out;
  FOX_CHECK(params.gate && x.rows >= 1 && x.rows == y.rows && x.rows <= INT32_MAX);
  FOX_CHECK(x.dtype == DType::kBF16 && x.cols == weight.in() && x.row_stride % 8 == 0);
  FOX_CHECK(weight.out() == 2 * y.cols && weight.out() <= INT32_MAX && weight.in() <= INT32_MAX);
  FOX_CHECK(y.dtype == DType::kBF16 && y.cols % 8 == 0 && y.row_stride % 8 == 0);
  FOX_CHECK(reinterpret_cast<uintptr_t>(y.data) % 16 == 0);
  PrefillGemmArguments a{};
  a.rows = static_cast<int>(x.rows);
  a.out = static_cast<int>(y.cols);
  a.chunks = CeilDiv(static_cast<int>(weight.in()), kTileCols);
  a.act = *params.gate;
  const auto launch =
      TakesNarrow(a, multiprocessors) ? LaunchPlan<NarrowPlan> : LaunchPlan<WidePlan>;
  return launch(a, x, weight, y, multiprocessors, stream);
}

}  // namespace fox::cuda
