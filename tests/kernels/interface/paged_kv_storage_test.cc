// The page pool's limits. The simulation has the same pool under random plans, beside a model of it
// and with faults planted in it (tests/engine/sim/paged_keys.h).
#include "kernels/interface/paged_kv_storage.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CpuOptions OneThread() {
  CpuOptions options;
  options.threads = 1;
  options.audit = nullptr;
  return options;
}

PagedKvShape Shape(int layers, int q_heads, int kv_heads, int head_dim, int slots, int max_pages,
                   int num_pages) {
  PagedKvShape shape;
  shape.layers = layers;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.max_slots = slots;
  shape.max_pages = max_pages;
  shape.num_pages = num_pages;
  return shape;
}

// `count` rows behind `position` in slot 0 of every layer.
void AppendRows(CpuOps& ops, const PagedKvStorage& cache, int64_t position, int64_t count) {
  const PagedKvShape& shape = cache.view().shape;
  const int64_t q_size = static_cast<int64_t>(shape.q_heads) * shape.head_dim;
  const int64_t columns = q_size + 2 * shape.kv_size();
  std::vector<float> projection(static_cast<size_t>(count * columns), 1.0F);
  const int32_t slot = 0;
  const int64_t row_begin[] = {0, count};
  const double log_eps = -10;
  const BatchView batch{1, count, nullptr, &slot, row_begin, &position, &log_eps};
  AppendParams append;
  append.projection = {projection.data(), DType::kF32, count, columns, columns};
  append.k_column = q_size;
  append.v_column = q_size + shape.kv_size();
  append.has_gate = false;
  ops.BeginStep(batch, cache.view(), nullptr);
  for (int layer = 0; layer < shape.layers; ++layer) {
    append.layer = layer;
    ops.Append(batch, append, cache.view(), nullptr);
  }
}

void Release(CpuOps& ops, const PagedKvStorage& cache, const std::vector<int32_t>& slots) {
  ops.Release(slots.data(), static_cast<int>(slots.size()), cache.view(), nullptr);
}

TEST(PagedKvStorageTest, ReleaseTwiceIsHarmless) {
  CpuOps ops(OneThread());
  PagedKvStorage cache(Shape(2, 2, 2, 4, 2, 3, 12), ops);
  AppendRows(ops, cache, 0, 130);
  Release(ops, cache, {0});
  Release(ops, cache, {0, 0, 1});
  EXPECT_EQ(*cache.view().free_count, 12);
  const double* mass = cache.view().max_log_evicted_mass;
  EXPECT_EQ(std::vector<double>(mass, mass + 4), std::vector<double>(4, -kInfinity));
  const int32_t* first_live = cache.view().first_live;
  EXPECT_EQ(std::vector<int32_t>(first_live, first_live + 4), std::vector<int32_t>(4, 0));
}

TEST(PagedKvStorageDeathTest, BrokenPreconditionsEndTheProcess) {
  CpuOps ops(OneThread());
  PagedKvStorage small(Shape(2, 4, 2, 4, 1, 3, 11), ops);
  AppendRows(ops, small, 0, 100);
  EXPECT_DEATH(AppendRows(ops, small, 100, 92), "check failed: \\*kv.free_count > 0");
  PagedKvStorage cache(Shape(2, 4, 2, 4, 1, 3, 24), ops);
  AppendRows(ops, cache, 0, 100);
  EXPECT_DEATH(AppendRows(ops, cache, 99, 1), "check failed: drafts >= 0");
  EXPECT_DEATH(AppendRows(ops, cache, 101, 1), "check failed: drafts >= 0");
  EXPECT_DEATH(AppendRows(ops, cache, 100, 93), "check failed: end <= kv.shape.max_pages");
}

}  // namespace
}  // namespace fox
