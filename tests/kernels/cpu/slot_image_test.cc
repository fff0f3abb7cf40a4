// SaveSlot and LoadSlot: a sequence that returns from an image into another slot and other pages
// continues bit for bit like a sequence that stayed; slots that shared pages with it do not change.
#include "kernels/paging/slot_image.h"

#include <gtest/gtest.h>

#include "tests/kernels/cpu/text_cache.h"

namespace fox::testing {
namespace {

constexpr int64_t kTokens = TextCache::kTokens;
constexpr int kPages = 200;

struct Case {
  AcpMode acp;
  DType dtype;
  int kv_heads;  // of four query heads
  bool k_shift, v_shift;
};

PagedKvShape Shape(const Case& c) {
  PagedKvShape shape;
  shape.layers = 2;
  shape.q_heads = 4;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = 8;
  shape.dtype = c.dtype;
  shape.num_pages = kPages;
  shape.max_slots = 5;
  shape.max_pages = 5;
  shape.k_shift = c.k_shift;
  shape.v_shift = c.v_shift;
  return shape;
}

// An image of exactly the required size.
struct Image {
  Image(const PagedKvShape& shape, int64_t pages)
      : memory(SlotImageBytes(shape, pages), std::byte{0xa5}), slot{memory.data(), pages} {}
  std::vector<std::byte> memory;
  SlotImage slot;
};

class SlotImageTest : public ::testing::TestWithParam<Case> {
 protected:
  SlotImageTest() : cache_(Shape(GetParam()), GetParam().acp), kv_(cache_.kv()) {}

  Image SaveSlot(int32_t slot) {
    Image image(kv_.shape, cache_.LivePages(slot));
    cache_.ops().SaveSlot(slot, image.slot, kv_, nullptr);
    return image;
  }

  TextCache cache_;
  const PagedKv& kv_;
};

TEST_P(SlotImageTest, GoingOnIsTheSameInAnotherSlot) {
  for (const int64_t length : {1, 63, 64, 65, 128, 130, 200, 290}) {
    SCOPED_TRACE(::testing::Message() << length << " tokens");
    SCOPED_TRACE(length);
    for (const int32_t slot : {0, 1}) {
      cache_.Append(slot, 0, length / 2 + 1);
      if (length > 1) cache_.Append(slot, length / 2 + 1, length);
    }
    const Contents state = cache_.StateOf(1);
    ASSERT_EQ(Difference(cache_.StateOf(0), state), "");
    const int64_t live = cache_.LivePages(0);
    if (length > 250 && GetParam().acp != AcpMode::kOff) {
      ASSERT_LT(live, kv_.shape.lists_per_slot() * PagesFor(length));
    }
    const Image image = SaveSlot(0);
    EXPECT_EQ(Difference(cache_.StateOf(0), state), "");  // it is untouched
    cache_.Release(0);
    // Now the slot gets other pages, and its old pages hold other values.
    cache_.Append(2, 0, 100);
    cache_.Append(3, 0, kTokens);
    cache_.Release(2);
    cache_.ops().LoadSlot(image.slot, 4, kv_, nullptr);
    EXPECT_EQ(kv_.sole_pages[4], live);
    ASSERT_EQ(Difference(cache_.StateOf(4), state), "");
    // Sharing goes by the rows of the last page end.
    cache_.ops().Share(4, 2, kv_, nullptr);
    cache_.ops().Share(1, 0, kv_, nullptr);
    EXPECT_EQ(Difference(cache_.StateOf(2), cache_.StateOf(0)), "");
    for (int64_t at = length; at < kTokens;) {
      const int64_t next = at < length + 2 ? at + 1 : kTokens;
      ASSERT_EQ(cache_.Append(4, at, next), cache_.Append(1, at, next)) << at;
      ASSERT_EQ(Difference(cache_.StateOf(4), cache_.StateOf(1)), "") << at;
      at = next;
    }
    for (int32_t slot = 0; slot < kv_.shape.max_slots; ++slot) cache_.Release(slot);
    EXPECT_EQ(*kv_.free_count, kPages);
  }
}

// The restored slot has pages of its own; the snapshot keeps its pages.
TEST_P(SlotImageTest, SharedPagesComeBackAsCopies) {
  cache_.Append(0, 0, 200);
  cache_.ops().Share(0, 1, kv_, nullptr);
  const Contents state = cache_.StateOf(0), snapshot = cache_.StateOf(1);
  const int64_t live = cache_.LivePages(0), kept = cache_.LivePages(1);
  EXPECT_EQ(kv_.sole_pages[1], 0);
  const Image image = SaveSlot(0);
  EXPECT_EQ(kv_.sole_pages[1], 0);
  cache_.Release(0);
  EXPECT_EQ(kv_.sole_pages[1], kept);
  cache_.ops().LoadSlot(image.slot, 0, kv_, nullptr);
  EXPECT_EQ(kv_.sole_pages[0], live);
  EXPECT_EQ(kv_.sole_pages[1], kept);
  EXPECT_EQ(*kv_.free_count, kPages - live - kept);
  EXPECT_EQ(Difference(cache_.StateOf(0), state), "");
  cache_.Append(0, 200, kTokens);
  EXPECT_EQ(Difference(cache_.StateOf(1), snapshot), "");
  cache_.Append(2, 0, 200);
  cache_.Append(2, 200, kTokens);
  EXPECT_EQ(Difference(cache_.StateOf(0), cache_.StateOf(2)), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, SlotImageTest,
                         ::testing::Values(Case{AcpMode::kOff, DType::kF32, 2, true, true},
                                           Case{AcpMode::kPaper, DType::kF32, 1, false, true},
                                           Case{AcpMode::kPaper, DType::kF32, 2, true, true},
                                           Case{AcpMode::kCertified, DType::kF32, 4, false, false},
                                           Case{AcpMode::kCertified, DType::kF32, 2, true, false},
                                           Case{AcpMode::kCertified, DType::kBF16, 2, true, true},
                                           Case{AcpMode::kCertified, DType::kE4M3, 2, true, true}));

// An image has no evicted keys, from which the audit of lost mass would know more.
TEST(SlotImageAuditTest, ARestoredSequenceIsNotChecked) {
  const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
  TextCache cache(Shape({AcpMode::kCertified, DType::kF32, 2, true, true}), AcpMode::kCertified,
                  audit);
  cache.Append(0, 0, 200);
  cache.Append(1, 0, 200);
  const Image image(cache.kv().shape, cache.LivePages(0));
  cache.ops().SaveSlot(0, image.slot, cache.kv(), nullptr);
  cache.Release(1);
  cache.ops().LoadSlot(image.slot, 1, cache.kv(), nullptr);
  const int64_t rows = audit->rows_checked();
  cache.Append(1, 200, kTokens);
  EXPECT_EQ(audit->rows_checked(), rows);
  cache.Append(0, 200, kTokens);
  EXPECT_GT(audit->rows_checked(), rows);
}

TEST(SlotImageDeathTest, ATooSmallImageEndsTheProcess) {
  TextCache cache(Shape({AcpMode::kOff, DType::kF32, 2, true, true}), AcpMode::kOff);
  cache.Append(0, 0, 65);
  Image image(cache.kv().shape, 7);
  EXPECT_DEATH(cache.ops().SaveSlot(0, image.slot, cache.kv(), nullptr),
               "check failed: before.back\\(\\) <= to.most_pages");
}

// A page in an image takes hardly more bytes than in the pool, and the server's budget counts on
// it.
TEST(SlotImageBytesTest, PagesAreRoundedToSectors) {
  PagedKvShape shape = Shape({AcpMode::kOff, DType::kBF16, 4, true, true});
  shape.head_dim = 64;
  EXPECT_EQ(shape.page_bytes(), 2 * 64 * 64 * 2 + 64 * 4 + 24);
  shape.dtype = DType::kE4M3;
  EXPECT_EQ(shape.page_bytes(), 2 * 64 * 64 + 128 + 64 * 4 + 24);
  const auto state = static_cast<int64_t>(SlotImageBytes(shape, 0));
  const auto page = static_cast<int64_t>(SlotImageBytes(shape, 1)) - state;
  EXPECT_EQ(state % kImageAlignment, 0);
  EXPECT_EQ(page % kImageAlignment, 0);
  EXPECT_LT(page - static_cast<int64_t>(shape.page_bytes()), kImageAlignment);
  EXPECT_GE(page, static_cast<int64_t>(shape.page_bytes()));
  EXPECT_EQ(static_cast<int64_t>(SlotImageBytes(shape, 1000)), state + 1000 * page);
}

}  // namespace
}  // namespace fox::testing
