// One block an SM owns a contiguous range of W's rows and streams it through a ring of tiles in
// shared memory, 16 rows by 512 columns: two warps copy, from before the previous kernel has ended;
// eight warps first take the first tiles into registers and transform the input rows, then multiply
// 64 columns of each tile. Tensor cores multiply, for four rows at a time would be too much
// arithmetic for the FP32 units: W is the operand of 16 rows, the input rows are the one of 8 (the
// rest are repeats, unused).
//
// The products between one layer's attention and the next one's are one launch for one row: the
// ring runs on from product to product, and a block waits for the others' outputs value by value.
//
// Bits: those of cluster_gemm.cu. A warp adds the chunks of 64 columns whose index is its own
// modulo 8, from left to right in one chain; the warps' sums are added as a tree.
#include <algorithm>
#include <array>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/small_batch_gemm.cuh"
#include "kernels/cuda/linear/small_batch_gemm.h"
#include "kernels/cuda/linear/small_batch_gemm_tiles.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace small_batch_gemm;
using Kind = InputTransform::Kind;

// Blocks of this product and the next share an SM's 228 KiB (each costs 1 KiB more),
// with attention's between. What is in shared memory before the wait need not be fetched after it,
// so a wide product, which follows a narrow one that adds to the residual stream, gets most of it.
constexpr int kWideBudget = 150 * 1024;
constexpr int kNarrowBudget = 75 * 1024;
// A chain's blocks share an SM with attention's alone.
constexpr int kChainBudget = 194 * 1024;
constexpr int kMinStages = 4;
// Behind attention; the last is the next layer's.
constexpr std::array kChainKinds{Kind::kNone, Kind::kRmsNorm, Kind::kGatedAct, Kind::kRmsNorm};

SmallBatchGemmArguments MakeArguments(const LinearParams& params) {
  SmallBatchGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params);
  a.source = MakeTransformArguments(params.in, params.transform);
  FOX_CHECK(a.source.out_cols == a.in);
  a.group = 1;
  return a;
}

// Divides each product's outputs among the blocks and gives the ring as many tiles as a block has,
// the budget holds and the barriers serve. Returns the block's shared memory.
size_t ChooseTiling(int blocks, int budget, std::span<SmallBatchGemmArguments> products) {
  int64_t tiles = 0;
  int tile_rows = 0, widest = 0;
  for (SmallBatchGemmArguments& a : products) {
    a.block_groups = a.out / a.group / blocks;
    a.extra_blocks = a.out / a.group % blocks;
    const int most = (a.block_groups + (a.extra_blocks > 0 ? 1 : 0)) * a.group;
    const bool gated = a.group > 1;
    const int outputs = gated ? kTileOutputs<true> : kTileOutputs<false>;
    tile_rows = std::max(tile_rows, gated ? kTileRows : std::min(kTileRows, most));
    widest = std::max(widest, a.in);
    tiles +=
        static_cast<int64_t>((most + outputs - 1) / outputs) * ((a.in + kTileCols - 1) / kTileCols);
  }
  const int fixed = FixedBytes(products[0].rows, widest), tile_bytes = tile_rows * kTileStride;
  const int fitting = std::max((budget - fixed) / tile_bytes, kMinStages);
  const int stages = static_cast<int>(std::min<int64_t>({tiles, fitting, kMaxStages}));
  for (SmallBatchGemmArguments& a : products) {
    a.stages = stages;
    a.tile_bytes = tile_bytes;
    a.widest = widest;
  }
  return static_cast<size_t>(stages * tile_bytes + fixed);
}

template <int kRows, Kind... kinds>
cudaError_t LaunchProducts(const ChainArguments<sizeof...(kinds)>& chain, int blocks, size_t bytes,
                           const DeviceLimits& limits, cudaStream_t stream) {
  const auto kernel = SmallBatchGemmKernel<kRows, kinds...>;
  const cudaError_t ready = AllowDynamicSmem(KernelAddress(kernel), limits.block_shared_bytes);
  if (ready != cudaSuccess) return ready;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                SmemConfig(bytes, true), stream, chain);
}

// `words`: where the flagged words lie.
template <Kind... kinds>
cudaError_t LaunchChain(ChainArguments<sizeof...(kinds)> chain, uint64_t* words,
                        const DeviceLimits& limits, cudaStream_t stream) {
  auto& products = chain.products;
  SmallBatchGemmArguments& gated = products[1];
  gated.act = products[2].source.act;
  gated.out /= 2;
  gated.group = 2;  // outputs of a flagged word
  for (size_t n = 0; n + 1 < sizeof...(kinds); ++n) {
    FOX_CHECK(products[n].out == products[n + 1].in);
    products[n].left = words;
    products[n + 1].taken = words;
    words += products[n].out / products[n].group;
  }
  const int blocks = limits.multiprocessors;
  const size_t bytes =
      ChooseTiling(blocks, std::min(kChainBudget, limits.block_shared_bytes), products);
  return LaunchProducts<1, kinds...>(chain, blocks, bytes, limits, stream);
}

}  // namespace

bool GemvTakes(const LinearParams& params, const DeviceLimits& limits) {
  const MatrixView& in = params.in;
  const int64_t columns = params.weight.in();
  const bool norm = params.transform.kind == InputTransform::Kind::kRmsNorm;
  if (in.rows < 1 || in.rows > kMaxGemvRows || in.dtype != (norm ? DType::kF32 : DType::kBF16)) {
    return false;
  }
  if (columns % transform::kUnit != 0 || columns > limits.block_shared_bytes) return false;
  const int most =
      FixedBytes(kMaxRows, static_cast<int>(columns)) + kMinStages * kTileRows * kTileStride;
  return most <= limits.block_shared_bytes;
}

cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream) {
  FOX_CHECK(GemvTakes(params, limits));
  ChainArguments<1> one{{MakeArguments(params)}, nullptr};
  const SmallBatchGemmArguments& a = one.products[0];
  const int blocks = std::min(limits.multiprocessors, a.out);
  const int budget = a.accumulate ? kNarrowBudget : kWideBudget;
  const size_t bytes =
      ChooseTiling(blocks, std::min(budget, limits.block_shared_bytes), one.products);
  return DispatchTransform(params.transform.kind, params.in.dtype, [&]<Kind kind, typename In>() {
    if constexpr (std::is_same_v<In, InputOf<kind>>) {
      return a.rows == 1 ? LaunchProducts<1, kind>(one, blocks, bytes, limits, stream)
                         : LaunchProducts<kMaxRows, kind>(one, blocks, bytes, limits, stream);
    }
    return cudaErrorInvalidValue;
  });
}

bool ChainTakes(std::span<const LinearParams> products, const DeviceLimits& limits) {
  if (products.size() != kChainKinds.size() && products.size() + 1 != kChainKinds.size()) {
    return false;
  }
  for (size_t n = 0; n < products.size(); ++n) {
    const LinearParams& params = products[n];
    const bool norm = kChainKinds[n] == Kind::kRmsNorm;
    if (params.in.rows != 1 || !GemvTakes(params, limits)) return false;
    if (params.transform.kind != kChainKinds[n] || params.transform.apart != norm) return false;
    // The odd ones read the residual stream, which the others add to.
    if (params.accumulate == norm || (params.bias != nullptr && n < 3)) return false;
    if (n > 0 && params.in.data != products[n - 1].out.data) return false;
  }
  const PackedWeight& down = products[2].weight;
  const int64_t words = down.in() / 2;  // of its input
  const bool one_stream = products[0].out.data == products[2].out.data;
  // Every block leaves something, after it has read the epoch, that the first one takes last.
  const bool all_leave = std::min(words, down.out()) >= limits.multiprocessors;
  return one_stream && all_leave && 2 * down.out() + words < kChainWords;
}

cudaError_t SmallBatchGemmChain(std::span<const LinearParams> products, uint64_t* words,
                                const DeviceLimits& limits, cudaStream_t stream) {
  FOX_CHECK(ChainTakes(products, limits));
  const auto epoch = reinterpret_cast<uint32_t*>(words);
  words += 2;  // 16 bytes
  if (products.size() == 3) {
    return LaunchChain<kChainKinds[0], kChainKinds[1], kChainKinds[2]>(
        {{MakeArguments(products[0]), MakeArguments(products[1]), MakeArguments(products[2])},
         epoch},
        words, limits, stream);
  }
  return LaunchChain<kChainKinds[0], kChainKinds[1], kChainKinds[2], kChainKinds[3]>(
      {{MakeArguments(products[0]), MakeArguments(products[1]), MakeArguments(products[2]),
        MakeArguments(products[3])},
       epoch},
      words, limits, stream);
}

}  // namespace fox::cuda
