// Share on the device: the pages of two slots afterwards, their owners, the state of the page end;
// and owners after many steps.
#include <gtest/gtest.h>

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

TEST(ShareDeviceTest, TheStateIsThatOfThePageEnd) {
  DeviceKv kv(NarrowShape(kLayers, kKvHeads, kGroup, kSlots, kMaxPages, kPages));
  std::mt19937_64 rng(1);
  for (const int64_t length : {64, 100, 64 * 70, 64 * 70 + 63}) {
    SCOPED_TRACE(::testing::Message() << length << " tokens");
    SCOPED_TRACE(length);
    kv.Begin(0, 0, length);
    kv.ForEachContent([&]<typename T>(DeviceArray<T>& array) {
      std::vector<T> values = array.ToHost();
      for (T& value : values) value = static_cast<T>(static_cast<double>(rng() % 60000) / 7);
      array.CopyFrom(values);
    });
    kv.Share(0, 2);
    EXPECT_EQ(kv.Fault(), PoolFault::kNone);
    kv.ExpectOwnersOfTheTables();
    const int64_t pages = length / kPageTokens;
    EXPECT_EQ(kv.length.ToHost()[2], pages * kPageTokens);
    for (const auto* array : {&kv.evicted_log_mass, &kv.log_mass, &kv.decay_sum}) {
      EXPECT_EQ(OfSlot(*array, 2, kHeads), OfSlot(*array, 0, kHeads))
          << array - &kv.evicted_log_mass;
    }
    EXPECT_EQ(OfSlot(kv.key_sum, 2, kHeads * kDim), OfSlot(kv.key_sum, 0, kHeads * kDim));
    EXPECT_EQ(OfSlot(kv.max_log_evicted_mass, 2, kLists),
              OfSlot(kv.max_log_evicted_mass, 0, kLists));
    const auto ends = OfSlot(kv.page_end_k, 0, kLists * kDim);
    EXPECT_EQ(OfSlot(kv.last_k, 2, kLists * kDim), ends);
    EXPECT_EQ(OfSlot(kv.page_end_k, 2, kLists * kDim), ends);
    EXPECT_EQ(OfSlot(kv.last_v, 2, kLists * kDim), OfSlot(kv.page_end_v, 0, kLists * kDim));
    std::vector<double> gates = OfSlot(kv.cum_log_f, 0, kHeads);
    const std::vector<int32_t> table = kv.page_table.ToHost();
    const std::vector<double> bases = kv.page_cum_log_f.ToHost();
    for (int64_t head = 0; length % kPageTokens != 0 && head < kHeads; ++head) {
      const int64_t page = table[static_cast<size_t>(head / kGroup * kMaxPages + pages)];
      gates[static_cast<size_t>(head)] = bases[static_cast<size_t>(page * kGroup + head % kGroup)];
    }
    EXPECT_EQ(OfSlot(kv.cum_log_f, 2, kHeads), gates);
    kv.Release(0);
    kv.Release(2);
    kv.ExpectOwnersOfTheTables();
    EXPECT_EQ(kv.FreeCount(), kPages);
  }
}

// Slots that grow, share and are released, in random order.
TEST(ShareDeviceTest, OwnersAreRightInAnyOrder) {
  DeviceKv kv(NarrowShape(kLayers, kKvHeads, kGroup, kSlots, /*max_pages=*/40, kLists * 120));
  std::mt19937_64 rng(2);
  std::vector<int64_t> lengths(kSlots, 0);
  int shares = 0;
  for (int step = 0; step < 200 && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(step);
    const int a = static_cast<int>(rng() % kSlots), b = static_cast<int>(rng() % kSlots);
    int64_t &length = lengths[static_cast<size_t>(a)], &other = lengths[static_cast<size_t>(b)];
    if (rng() % 2 == 0 && length < 24 * kPageTokens) {
      const auto rows = static_cast<int64_t>(rng() % 300 + 1);
      kv.Begin(a, length, rows);
      length += rows;
    } else {
      kv.Release(b);
      other = 0;
      if (a == b) continue;
      const Contents before = kv.ContentsOf(a);
      kv.Share(a, b);
      other = length / kPageTokens * kPageTokens;
      shares += other > 0 ? 1 : 0;
      EXPECT_EQ(Difference(kv.ContentsOf(a), before), "");
    }
    kv.ExpectOwnersOfTheTables();
  }
  EXPECT_EQ(kv.Fault(), PoolFault::kNone) << Describe(kv.Fault());
  EXPECT_GT(shares, 20);
}

}  // namespace
}  // namespace fox::cuda::testing
