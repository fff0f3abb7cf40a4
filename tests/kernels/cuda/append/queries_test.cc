// Queries of a chunk are appended while the running sums over its pages are computed: both have the
// same results as if kernels ran one at a time.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

constexpr int kLayers = 8, kHeads = 4, kHeadDim = 64;
constexpr int64_t kRows = 4096, kWidth = kHeads * kHeadDim;
constexpr int64_t kStride = 3 * kWidth + 8;  // queries, keys, values, gates

std::vector<uint16_t> RandomRows() {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(static_cast<size_t>(kLayers * kRows * kStride));
  for (uint16_t& x : rows) x = BFloat16(normal(rng)).bits;
  return rows;
}

struct Left {
  std::vector<uint16_t> projections;
  std::vector<double> key_sum, log_mass;
  bool operator==(const Left&) const = default;
};

// All layers of one step, each with a projection of its own.
Left AppendAll(const std::vector<uint16_t>& rows, bool overlap) {
  const PagedKvShape shape{.layers = kLayers,
                           .q_heads = kHeads,
                           .kv_heads = kHeads,
                           .head_dim = kHeadDim,
                           .dtype = DType::kBF16,
                           .num_pages = kLayers * kHeads * PagesFor(kRows),
                           .max_slots = 1,
                           .max_pages = PagesFor(kRows)};
  const DeviceKv kv(shape);
  const DeviceBatch batch({{0, 0, kRows}});
  const DeviceWork schedule(shape, kRows, 1);
  const DeviceArray<uint16_t> projections(rows);
  const DeviceArray<float> weights(std::vector<float>(static_cast<size_t>(kWidth), 1.1F));
  const DeviceArray<double> largest(std::vector<double>(kHeads, 10));
  AppendParams params;
  params.k_column = kWidth;
  params.v_column = 2 * kWidth;
  params.fgate_column = 3 * kWidth;
  params.q_norm = params.k_norm = params.bound.diagonal = weights.data();
  params.bound.self_logit_bound = params.bound.max_logit_bound = largest.data();
  params.acp = AcpMode::kCertified;
  AllowOverlap(nullptr, overlap);
  EXPECT_EQ(BeginStep(batch.view, kv.view, schedule.view, nullptr), cudaSuccess);
  for (params.layer = 0; params.layer < kLayers; ++params.layer) {
    params.projection = {projections.data() + params.layer * kRows * kStride, DType::kBF16, kRows,
                         kStride, kStride};
    EXPECT_EQ(Append(batch.view, params, kv.view, schedule.view, false, nullptr), cudaSuccess);
  }
  AllowOverlap(nullptr, true);
  return {projections.ToHost(), kv.key_sum.ToHost(), kv.log_mass.ToHost()};
}

TEST(QueriesTest, SameDuringTheRunningSumsAsAfterThem) {
  const std::vector<uint16_t> rows = RandomRows();
  const Left alone = AppendAll(rows, false);
  EXPECT_NE(alone.projections, rows);
  for (int repeat = 0; repeat < 4; ++repeat) EXPECT_TRUE(AppendAll(rows, true) == alone);
}

}  // namespace
}  // namespace fox::cuda::testing
