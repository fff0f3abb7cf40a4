// Share on the device: the pages of two slots afterwards, their owners, the state of the page end;
// and a page is free when its last owner has released it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/paging/paging.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

constexpr int kLayers = 3, kKvHeads = 7, kGroup = 2, kSlots = 4, kMaxPages = 80, kPages = 6000;
constexpr int64_t kLists = kLayers * kKvHeads, kHeads = kLists * kGroup, kDim = 16;

template <typename T>
std::vector<T> OfSlot(const DeviceArray<T>& array, int slot, int64_t count) {
  const std::vector<T> all = array.ToHost();
  return {all.begin() + slot * count, all.begin() + (slot + 1) * count};
}

class ShareDeviceTest : public ::testing::Test {
 protected:
  ShareDeviceTest() : kv_(NarrowShape(kLayers, kKvHeads, kGroup, kSlots, kMaxPages, kPages)) {}

  void ShareSlot(int from, int to) {
    kv_.Share(from, to);
    EXPECT_EQ(kv_.Fault(), PoolFault::kNone);
  }

  std::mt19937_64 rng_{1};
  DeviceKv kv_;
};

TEST_F(ShareDeviceTest, TheStateIsThatOfThePageEnd) {
  for (const int64_t length : {64, 100, 64 * 70, 64 * 70 + 63}) {
    SCOPED_TRACE(length);
    kv_.Begin(0, 0, length);
    kv_.ForEachContent([&]<typename T>(DeviceArray<T>& array) {
      std::vector<T> values = array.ToHost();
      for (T& value : values) value = static_cast<T>(static_cast<double>(rng_() % 60000) / 7);
      array.CopyFrom(values);
    });
    ShareSlot(0, 2);
    kv_.ExpectOwnersOfTheTables();
    const int64_t pages = length / kPageTokens;
    EXPECT_EQ(kv_.length.ToHost()[2], pages * kPageTokens);
    for (const auto* array : {&kv_.log_mass, &kv_.decay_sum}) {
      EXPECT_EQ(OfSlot(*array, 2, kHeads), OfSlot(*array, 0, kHeads));
    }
    EXPECT_EQ(OfSlot(kv_.key_sum, 2, kHeads * kDim), OfSlot(kv_.key_sum, 0, kHeads * kDim));
    EXPECT_EQ(OfSlot(kv_.max_log_evicted_mass, 2, kLists),
              OfSlot(kv_.max_log_evicted_mass, 0, kLists));
    const auto ends = OfSlot(kv_.page_end_k, 0, kLists * kDim);
    EXPECT_EQ(OfSlot(kv_.last_k, 2, kLists * kDim), ends);
    EXPECT_EQ(OfSlot(kv_.page_end_k, 2, kLists * kDim), ends);
    EXPECT_EQ(OfSlot(kv_.last_v, 2, kLists * kDim), OfSlot(kv_.page_end_v, 0, kLists * kDim));
    std::vector<double> gates = OfSlot(kv_.cum_log_f, 0, kHeads);
    const std::vector<int32_t> table = kv_.page_table.ToHost();
    const std::vector<double> bases = kv_.page_cum_log_f.ToHost();
    for (int64_t head = 0; length % kPageTokens != 0 && head < kHeads; ++head) {
      const int64_t page = table[static_cast<size_t>(head / kGroup * kMaxPages + pages)];
      gates[static_cast<size_t>(head)] = bases[static_cast<size_t>(page * kGroup + head % kGroup)];
    }
    EXPECT_EQ(OfSlot(kv_.cum_log_f, 2, kHeads), gates);
    kv_.Release(0);
    kv_.Release(2);
    kv_.ExpectOwnersOfTheTables();
    EXPECT_EQ(kv_.FreeCount(), kPages);
  }
}

TEST_F(ShareDeviceTest, APageIsFreeWhenItsLastOwnerHasGivenItUp) {
  std::vector<int64_t> lengths(kSlots, 0);
  for (int step = 0; step < 300 && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    const int a = static_cast<int>(rng_() % kSlots), b = static_cast<int>(rng_() % kSlots);
    auto& length = lengths[static_cast<size_t>(a)];
    switch (rng_() % 3) {
      case 0: {
        const auto rows = static_cast<int64_t>(rng_() % 700 + 1);
        if (length + rows > kMaxPages * kPageTokens) break;
        kv_.Begin(a, length, rows);
        length += rows;
        break;
      }
      case 1:
        if (a == b) break;
        kv_.Release(b);
        ShareSlot(a, b);
        lengths[static_cast<size_t>(b)] = length / kPageTokens * kPageTokens;
        break;
      default:
        kv_.Release(a);
        length = 0;
    }
    kv_.ExpectOwnersOfTheTables();
  }
  EXPECT_EQ(kv_.Fault(), PoolFault::kNone);
}

}  // namespace
}  // namespace fox::cuda::testing
