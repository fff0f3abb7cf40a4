// Share: a slot that goes on from another's last page end holds, bit for bit, the state that the
// other had there, and neither sees the other's later rows.
#include <gtest/gtest.h>

#include "tests/kernels/cpu/text_cache.h"

namespace fox::testing {
namespace {

constexpr int64_t kTokens = TextCache::kTokens;

PagedKvShape Shape(DType dtype) {
  PagedKvShape shape;
  shape.dtype = dtype;
  shape.layers = 2;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.num_pages = 100;
  shape.max_slots = 4;
  shape.max_pages = 5;
  shape.k_shift = shape.v_shift = true;
  return shape;
}

class ShareTest : public ::testing::TestWithParam<std::tuple<AcpMode, DType>> {};

TEST_P(ShareTest, GoingOnIsTheSameFromTheSharedPageEnd) {
  const auto [acp, dtype] = GetParam();
  TextCache cache(Shape(dtype), acp);
  const PagedKv& kv = cache.kv();
  for (const int64_t length : {64, 65, 100, 127, 128, 129, 191, 192, 250}) {
    SCOPED_TRACE(length);
    const int64_t page_end = length / kPageTokens * kPageTokens;
    cache.Append(0, 0, length);
    cache.ops().Share(0, 1, kv, nullptr);
    EXPECT_EQ(kv.length[1], page_end);
    // Equal to a slot that stopped at the page end.
    cache.Append(2, 0, page_end);
    EXPECT_EQ(Difference(cache.StateOf(1), cache.StateOf(2)), "");
    // And it stays so while the first slot goes on.
    cache.Append(0, length, kTokens);
    cache.Append(1, page_end, page_end + 20);
    cache.ops().Share(1, 3, kv, nullptr);  // within a page: the same page end again
    EXPECT_EQ(Difference(cache.StateOf(3), cache.StateOf(2)), "");
    cache.Append(1, page_end + 20, kTokens);
    EXPECT_EQ(Difference(cache.StateOf(1), cache.StateOf(0)), "");
    const int32_t slots[] = {0, 1, 2, 3};
    cache.ops().Release(slots, 4, kv, nullptr);
    EXPECT_EQ(*kv.free_count, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ShareTest,
                         ::testing::Combine(::testing::Values(AcpMode::kOff, AcpMode::kPaper,
                                                              AcpMode::kCertified),
                                            ::testing::Values(DType::kF32, DType::kE4M3)));

}  // namespace
}  // namespace fox::testing
