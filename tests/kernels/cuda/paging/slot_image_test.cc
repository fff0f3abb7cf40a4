// SaveSlot and LoadSlot on the device: all of a slot's contents come back bit for bit, into another
// slot and other pages, within one stream and without a wait; owners and counts are right; nothing
// is written beside the image; and broken promises of the scheduler are reported.
#include "kernels/paging/slot_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/runtime/cuda_queue.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

constexpr int kSlots = 4, kMaxPages = 40;

// Device memory with room for this many pages, and a guard after it.
class Image {
 public:
  Image(const PagedKvShape& shape, int64_t pages)
      : bytes_(SlotImageBytes(shape, pages)),
        memory_(std::vector<std::byte>(bytes_ + kGuard, kUntouched)),
        slot_{memory_.data(), pages} {}

  void SaveSlot(int32_t slot, const DeviceKv& from) const {
    ASSERT_EQ(cuda::SaveSlot(slot, slot_, from.view, nullptr), cudaSuccess);
  }
  void LoadSlot(const DeviceKv& to, int32_t slot) const {
    ASSERT_EQ(cuda::LoadSlot(slot_, slot, to.view, nullptr), cudaSuccess);
  }
  std::byte* data() const { return slot_.data; }
  size_t bytes() const { return bytes_; }
  // Sets the saved slot's length, with which the image begins.
  void SetLength(int64_t tokens) {
    std::vector<std::byte> bytes = memory_.ToHost();
    std::memcpy(bytes.data(), &tokens, sizeof(tokens));
    memory_.CopyFrom(bytes);
  }
  // Bytes changed behind the image.
  int64_t TouchedBehind() const {
    const std::vector<std::byte> bytes = memory_.ToHost();
    return kGuard -
           std::count(bytes.begin() + static_cast<int64_t>(bytes_), bytes.end(), kUntouched);
  }

 private:
  static constexpr int64_t kGuard = 1 << 16;
  static constexpr std::byte kUntouched{0xa5};
  const size_t bytes_;
  DeviceArray<std::byte> memory_;
  const SlotImage slot_;
};

struct Case {
  int layers, kv_heads, group, head_dim;
  bool k_shift, v_shift;
  DType dtype = DType::kBF16;
};

PagedKvShape Shape(const Case& c, int num_pages) {
  PagedKvShape shape = NarrowShape(c.layers, c.kv_heads, c.group, kSlots, kMaxPages, num_pages);
  shape.head_dim = c.head_dim;
  shape.dtype = c.dtype;
  shape.k_shift = c.k_shift;
  shape.v_shift = c.v_shift;
  return shape;
}

// Random bits, except for the arrays that say which slot owns a page.
void Randomize(DeviceKv& kv, std::mt19937_64& rng) {
  kv.ForEachContent([&]<typename T>(DeviceArray<T>& array) {
    std::vector<uint64_t> words(array.bytes() / sizeof(uint64_t) + 1);
    for (uint64_t& word : words) word = rng();
    std::vector<T> values(array.size());
    std::memcpy(values.data(), words.data(), array.bytes());
    array.CopyFrom(values);
  });
}

// As eviction does: some leading pages of each list go back to the pool.
void EvictSome(DeviceKv& kv, int slot, std::mt19937_64& rng) {
  std::vector<int32_t> first = kv.first_live.ToHost(), stack = kv.free_stack.ToHost();
  std::vector<int32_t> count = kv.free_count.ToHost(), sole = kv.sole_pages.ToHost();
  const std::vector<int32_t> table = kv.page_table.ToHost();
  std::vector<uint64_t> owners = kv.page_owners.ToHost();
  const int pages = PagesFor(kv.length.ToHost()[static_cast<size_t>(slot)]);
  const int64_t lists = kv.view.shape.lists_per_slot();
  for (int64_t list = slot * lists; list < (slot + 1) * lists; ++list) {
    int32_t& begin = first[static_cast<size_t>(list)];
    const int gone = static_cast<int>(rng() % static_cast<uint64_t>(pages - begin));
    for (const int end = begin + gone; begin < end; ++begin) {
      const int32_t page = table[static_cast<size_t>(list * kMaxPages + begin)];
      owners[static_cast<size_t>(page)] = 0;
      --sole[static_cast<size_t>(slot)];
      stack[static_cast<size_t>(count[0]++)] = page;
    }
  }
  kv.first_live.CopyFrom(first);
  kv.free_stack.CopyFrom(stack);
  kv.free_count.CopyFrom(count);
  kv.sole_pages.CopyFrom(sole);
  kv.page_owners.CopyFrom(owners);
}

int64_t LivePages(const DeviceKv& kv, int slot) {
  const int64_t lists = kv.view.shape.lists_per_slot();
  const std::vector<int32_t> first = kv.first_live.ToHost();
  const auto begin = first.begin() + slot * lists;
  const int pages = PagesFor(kv.length.ToHost()[static_cast<size_t>(slot)]);
  return pages * lists - std::accumulate(begin, begin + lists, int64_t{0});
}

class SlotImageDeviceTest : public ::testing::TestWithParam<Case> {};

TEST_P(SlotImageDeviceTest, AllComesBackIntoAnotherSlot) {
  const PagedKvShape shape = Shape(GetParam(), GetParam().layers * GetParam().kv_heads * 40);
  DeviceKv kv(shape);
  std::mt19937_64 rng(1);
  for (const int64_t length : {1, 63, 64, 65, 700, 64 * 20, 64 * 20 + 1}) {
    SCOPED_TRACE(length);
    kv.Begin(0, 0, length);
    kv.Begin(1, 0, 130);
    EvictSome(kv, 0, rng);
    Randomize(kv, rng);
    const Contents contents = kv.ContentsOf(0), other = kv.ContentsOf(1);
    const int64_t live = LivePages(kv, 0);
    const Image image(shape, live);
    image.SaveSlot(0, kv);
    ASSERT_EQ(Difference(kv.ContentsOf(0), contents), "");
    // Again, all in a row: kernels enqueued behind SaveSlot may start early, and must wait.
    image.SaveSlot(0, kv);
    kv.Release(0);
    image.LoadSlot(kv, 3);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(kv.Fault(), PoolFault::kNone) << Describe(kv.Fault());
    EXPECT_EQ(Difference(kv.ContentsOf(3), contents), "");
    EXPECT_EQ(Difference(kv.ContentsOf(1), other), "");
    EXPECT_EQ(image.TouchedBehind(), 0);
    EXPECT_EQ(kv.sole_pages.ToHost()[3], live);
    kv.ExpectOwnersOfTheTables();
    for (const int32_t slot : {0, 1, 3}) kv.Release(slot);
    kv.ExpectOwnersOfTheTables();
    EXPECT_EQ(kv.FreeCount(), shape.num_pages);
  }
}

// Lists of more than a block's threads, odd groups (whose summaries are not whole 16-byte words),
// wide heads.
INSTANTIATE_TEST_SUITE_P(Shapes, SlotImageDeviceTest,
                         ::testing::Values(Case{3, 7, 2, 16, true, true},
                                           Case{3, 5, 1, 64, false, true},
                                           Case{3, 5, 1, 64, false, true, DType::kE4M3},
                                           Case{2, 3, 3, 128, true, false},
                                           Case{33, 32, 1, 16, false, false}));

constexpr Case kSmall{2, 3, 1, 16, true, true};

class SlotImageFaultTest : public ::testing::Test {
 protected:
  SlotImageFaultTest() {
    kv_.Begin(0, 0, 300);
    range_.SaveSlot(0, kv_);
    EXPECT_EQ(kv_.Fault(), PoolFault::kNone);
  }
  void ExpectFault(PoolFault fault) {
    EXPECT_EQ(kv_.Fault(), fault) << Describe(kv_.Fault());
    EXPECT_EQ(kv_.length.ToHost()[1], 0);
    kv_.ExpectOwnersOfTheTables();
  }

  const PagedKvShape shape_ = Shape(kSmall, 6 * 9);
  DeviceKv kv_{shape_};
  Image range_{shape_, 6 * 5};
};

TEST_F(SlotImageFaultTest, ATooSmallImageIsReported) {
  const Image small(shape_, 6 * 5 - 1);
  small.SaveSlot(0, kv_);
  ExpectFault(PoolFault::kImageOverflow);
  EXPECT_EQ(small.TouchedBehind(), 0);
  // Nor is more read than the image has.
  kv_.pool_fault.CopyFrom({PoolFault::kNone});
  small.LoadSlot(kv_, 1);
  ExpectFault(PoolFault::kImageOverflow);
}

TEST_F(SlotImageFaultTest, ATooSmallPoolIsReported) {
  range_.LoadSlot(kv_, 1);  // four of five pages a list are free
  ExpectFault(PoolFault::kOverdrawn);
}

TEST_F(SlotImageFaultTest, ASequenceBeyondItsTableIsReported) {
  kv_.Release(0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  range_.SetLength(kMaxPages * kPageTokens + 1);
  range_.LoadSlot(kv_, 0);
  ExpectFault(PoolFault::kTableEnd);
}

// Images leave the device by copy streams and return in parts, by a thread each, while kernels run,
// into memory from which LoadSlot has read another image before.
TEST(SlotImageCopyTest, AnImageReturnsByCopyStreams) {
  constexpr size_t kThreads = 3;
  const PagedKvShape shape = Shape({3, 5, 1, 64, false, true}, 15 * 100);
  DeviceKv kv(shape);
  std::mt19937_64 rng(3);
  kv.Begin(0, 0, 700);
  kv.Begin(1, 0, 64 * 20 + 5);
  Randomize(kv, rng);
  DeviceError error;
  CudaQueue queue(error);
  std::vector<std::unique_ptr<CopyStream>> streams;
  for (size_t i = 0; i < kThreads; ++i) streams.push_back(queue.MakeCopyStream());
  const Image image(shape, 15 * kMaxPages);
  std::vector<Contents> contents;
  std::vector<Buffer> away;
  for (const int slot : {0, 1}) {
    SCOPED_TRACE(slot);
    contents.push_back(kv.ContentsOf(slot));
    image.SaveSlot(slot, kv);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    away.push_back(queue.AllocatePinned(image.bytes()));
    ASSERT_TRUE(streams[0]->Begin(image.data(), image.bytes(), away.back().data()));
    ASSERT_TRUE(streams[0]->Wait());
  }
  for (size_t round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    kv.Share(1, 2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        // Two copies that are under way together.
        const size_t begin = image.bytes() * i / kThreads, end = image.bytes() * (i + 1) / kThreads;
        for (const auto& [from, to] :
             {std::pair{begin, (begin + end) / 2}, {(begin + end) / 2, end}}) {
          EXPECT_TRUE(streams[i]->Begin(away[round % 2].as<std::byte>() + from, to - from,
                                        image.data() + from))
              << i;
        }
        EXPECT_TRUE(streams[i]->Wait()) << i;
      });
    }
    kv.Release(2);
    for (std::thread& thread : threads) thread.join();
    image.LoadSlot(kv, 3);
    EXPECT_EQ(Difference(kv.ContentsOf(3), contents[round % 2]), "");
    kv.Release(3);
  }
  EXPECT_EQ(kv.Fault(), PoolFault::kNone) << Describe(kv.Fault());
  EXPECT_EQ(error.text(), nullptr);
}

// Slots that grow, share, go and come back, in random order.
TEST(SlotImagePoolTest, OwnersAreRightInAnyOrder) {
  const PagedKvShape shape = Shape({3, 7, 2, 16, true, true}, 21 * 100);
  DeviceKv kv(shape);
  std::mt19937_64 rng(2);
  std::vector<int64_t> lengths(kSlots, 0);
  const Image image(shape, 21 * kMaxPages);
  int64_t away = -1;  // length of the sequence in the image
  Contents contents;
  int loads = 0;
  for (int step = 0; step < 200 && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(step);
    const int a = static_cast<int>(rng() % kSlots), b = static_cast<int>(rng() % kSlots);
    auto& length = lengths[static_cast<size_t>(a)];
    const auto kind = rng() % 4;
    if (kind == 0 && length < 24 * kPageTokens) {
      const auto rows = static_cast<int64_t>(rng() % 300 + 1);
      kv.Begin(a, length, rows);
      length += rows;
    } else if (kind == 1 && a != b) {
      kv.Release(b);
      kv.Share(a, b);
      lengths[static_cast<size_t>(b)] = length / kPageTokens * kPageTokens;
    } else if (kind == 2 && length > 0) {
      contents = kv.ContentsOf(a);
      image.SaveSlot(a, kv);
      kv.Release(a);
      away = length;
      length = 0;
    } else if (kind == 3 && away >= 0) {
      kv.Release(a);
      if (kv.FreeCount() < 21 * PagesFor(away)) continue;
      // Other pages, which others have written to meanwhile, and shared ones as copies.
      const Contents other = kv.ContentsOf(b);
      image.LoadSlot(kv, a);
      length = away;
      ++loads;
      EXPECT_EQ(Difference(kv.ContentsOf(a), contents), "");
      if (a != b) {
        EXPECT_EQ(Difference(kv.ContentsOf(b), other), "");
      }
    }
    kv.ExpectOwnersOfTheTables();
  }
  EXPECT_EQ(kv.Fault(), PoolFault::kNone) << Describe(kv.Fault());
  EXPECT_GT(loads, 20);
}

}  // namespace
}  // namespace fox::cuda::testing
