// SwapOut and SwapIn on the device: all that a slot has comes back bit for bit, into another slot
// and other pages, within one stream and without a wait; owners and counts are right; nothing is
// written beside the range; and what the scheduler promised wrongly is reported.
#include "kernels/swap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "kernels/cuda/paging/paging.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

constexpr int kSlots = 4, kMaxPages = 40;

// Pinned memory with room for this many pages, and a guard after it.
class Range {
 public:
  Range(const PagedKvShape& shape, int64_t pages) : bytes_(SwapBytes(shape, pages)) {
    void* data = nullptr;
    EXPECT_EQ(cudaMallocHost(&data, bytes_ + kGuard), cudaSuccess);
    slot_ = {static_cast<std::byte*>(data), pages};
    std::fill_n(slot_.data, bytes_ + kGuard, kUntouched);
  }
  ~Range() { cudaFreeHost(slot_.data); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  const HostSlot& slot() const { return slot_; }
  // When the device's work is done.
  int64_t TouchedBehind() const {
    return kGuard - std::count(slot_.data + bytes_, slot_.data + bytes_ + kGuard, kUntouched);
  }

 private:
  static constexpr int64_t kGuard = 1 << 16;
  static constexpr std::byte kUntouched{0xa5};
  const size_t bytes_;
  HostSlot slot_;
};

// Arrays as bytes, by name.
using Contents = std::map<std::string, std::vector<uint8_t>>;

template <typename T>
std::vector<uint8_t> BytesOf(const DeviceArray<T>& array) {
  const std::vector<T> values = array.ToHost();
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  return {first, first + array.bytes()};
}

// Names the first byte of each array that differs.
std::string Difference(const Contents& got, const Contents& expected) {
  std::string text;
  for (const auto& [name, bytes] : expected) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != bytes.size()) {
      text += name + ": another size; ";
      continue;
    }
    const auto at = std::mismatch(bytes.begin(), bytes.end(), found->second.begin());
    if (at.first == bytes.end()) continue;
    text += name + ": byte " + std::to_string(at.first - bytes.begin()) + " of " +
            std::to_string(bytes.size()) + " is " + std::to_string(*at.second) + ", not " +
            std::to_string(*at.first) + "; ";
  }
  return text;
}

struct Case {
  int layers, kv_heads, group, head_dim;
  bool k_shift, v_shift;
};

PagedKvShape Shape(const Case& c, int num_pages) {
  PagedKvShape shape = NarrowShape(c.layers, c.kv_heads, c.group, kSlots, kMaxPages, num_pages);
  shape.head_dim = c.head_dim;
  shape.k_shift = c.k_shift;
  shape.v_shift = c.v_shift;
  return shape;
}

class Cache {
 public:
  explicit Cache(const PagedKvShape& shape) : shape_(shape), kv_(shape) {}

  DeviceKv& kv() { return kv_; }
  PoolFault Fault() const { return kv_.pool_fault.ToHost()[0]; }
  int32_t FreeCount() const { return kv_.free_count.ToHost()[0]; }

  // All bits of the cache's pages and states, but what says which page is whose.
  void Randomize() {
    for (auto* array : {&kv_.max_log_evicted_mass, &kv_.cum_log_f, &kv_.log_mass, &kv_.decay_sum,
                        &kv_.key_sum, &kv_.page_cum_log_f, &kv_.log_mass_bound,
                        &kv_.log_denominator_bound, &kv_.max_key_norm}) {
      Fill(*array);
    }
    for (auto* array :
         {&kv_.log_f_offset, &kv_.last_k, &kv_.last_v, &kv_.page_end_k, &kv_.page_end_v}) {
      Fill(*array);
    }
    Fill(kv_.keys);
    Fill(kv_.values);
  }

  void Begin(int slot, int64_t position, int64_t rows) {
    const DeviceBatch batch({{slot, position, rows, -10}});
    const DeviceWork work(shape_, rows, 1);
    ASSERT_EQ(BeginStep(batch.view, kv_.view, work.view, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void Release(int32_t slot) { ASSERT_EQ(cuda::Release(&slot, 1, kv_.view, nullptr), cudaSuccess); }
  void SwapOut(int32_t slot, const Range& to) {
    ASSERT_EQ(cuda::SwapOut(slot, to.slot(), kv_.view, nullptr), cudaSuccess);
  }
  void SwapIn(const Range& from, int32_t slot) {
    ASSERT_EQ(cuda::SwapIn(from.slot(), slot, kv_.view, nullptr), cudaSuccess);
  }

  // As eviction does: some leading pages of each list go back to the pool.
  void EvictSome(int slot) {
    std::vector<int32_t> first = kv_.first_live.ToHost(), stack = kv_.free_stack.ToHost();
    std::vector<int32_t> count = kv_.free_count.ToHost(), sole = kv_.sole_pages.ToHost();
    const std::vector<int32_t> table = kv_.page_table.ToHost();
    std::vector<uint64_t> owners = kv_.page_owners.ToHost();
    const int pages = PagesFor(kv_.length.ToHost()[static_cast<size_t>(slot)]);
    for (int64_t list = slot * Lists(); list < (slot + 1) * Lists(); ++list) {
      int32_t& begin = first[static_cast<size_t>(list)];
      const int gone = static_cast<int>(rng_() % static_cast<uint64_t>(pages - begin));
      for (const int end = begin + gone; begin < end; ++begin) {
        const int32_t page = table[static_cast<size_t>(list * kMaxPages + begin)];
        owners[static_cast<size_t>(page)] = 0;
        --sole[static_cast<size_t>(slot)];
        stack[static_cast<size_t>(count[0]++)] = page;
      }
    }
    kv_.first_live.CopyFrom(first);
    kv_.free_stack.CopyFrom(stack);
    kv_.free_count.CopyFrom(count);
    kv_.sole_pages.CopyFrom(sole);
    kv_.page_owners.CopyFrom(owners);
  }

  int64_t LivePages(int slot) const {
    const std::vector<int32_t> first = kv_.first_live.ToHost();
    const auto begin = first.begin() + slot * Lists();
    const int pages = PagesFor(kv_.length.ToHost()[static_cast<size_t>(slot)]);
    return pages * Lists() - std::accumulate(begin, begin + Lists(), int64_t{0});
  }

  // All of a slot that has to come back.
  Contents ContentsOf(int slot) const {
    Contents contents;
    const std::vector<int64_t> length = kv_.length.ToHost();
    const std::vector<int32_t> first = kv_.first_live.ToHost(), table = kv_.page_table.ToHost();
    const int64_t heads = Lists() * shape_.group(), rows = Lists() * shape_.head_dim;
    const auto add = [&](const std::string& name, const auto& array, int64_t at, int64_t count) {
      const std::vector<uint8_t> bytes = BytesOf(array);
      const auto size = static_cast<int64_t>(array.bytes() / array.size());
      std::vector<uint8_t>& out = contents[name];
      out.insert(out.end(), bytes.begin() + at * size, bytes.begin() + (at + count) * size);
    };
    add("length", kv_.length, slot, 1);
    add("first_live", kv_.first_live, slot * Lists(), Lists());
    add("max_log_evicted_mass", kv_.max_log_evicted_mass, slot * Lists(), Lists());
    add("cum_log_f", kv_.cum_log_f, slot * heads, heads);
    add("log_mass", kv_.log_mass, slot * heads, heads);
    add("decay_sum", kv_.decay_sum, slot * heads, heads);
    add("key_sum", kv_.key_sum, slot * heads * shape_.head_dim, heads * shape_.head_dim);
    if (shape_.k_shift) add("last_k", kv_.last_k, slot * rows, rows);
    if (shape_.v_shift) add("last_v", kv_.last_v, slot * rows, rows);
    if (shape_.k_shift) add("page_end_k", kv_.page_end_k, slot * rows, rows);
    if (shape_.v_shift) add("page_end_v", kv_.page_end_v, slot * rows, rows);
    const auto add_pages = [&](const std::string& name, const auto& array, int64_t count) {
      const std::vector<uint8_t> bytes = BytesOf(array);
      const auto size = count * static_cast<int64_t>(array.bytes() / array.size());
      std::vector<uint8_t>& out = contents[name];
      for (int64_t list = slot * Lists(); list < (slot + 1) * Lists(); ++list) {
        for (int p = first[static_cast<size_t>(list)];
             p < PagesFor(length[static_cast<size_t>(slot)]); ++p) {
          const int64_t page = table[static_cast<size_t>(list * kMaxPages + p)];
          out.insert(out.end(), bytes.begin() + page * size, bytes.begin() + (page + 1) * size);
        }
      }
    };
    const int64_t tokens = kPageTokens * int64_t{shape_.head_dim};
    add_pages("keys", kv_.keys, tokens);
    add_pages("values", kv_.values, tokens);
    add_pages("log_f_offset", kv_.log_f_offset, int64_t{shape_.group()} * kPageTokens);
    add_pages("page_cum_log_f", kv_.page_cum_log_f, shape_.group());
    add_pages("log_mass_bound", kv_.log_mass_bound, shape_.group());
    add_pages("log_denominator_bound", kv_.log_denominator_bound, shape_.group());
    add_pages("max_key_norm", kv_.max_key_norm, shape_.group());
    return contents;
  }

  void CheckOwners() const { kv_.ExpectOwnersOfTheTables(); }

 private:
  int64_t Lists() const { return shape_.lists_per_slot(); }

  template <typename T>
  void Fill(DeviceArray<T>& array) {
    std::vector<T> values(array.size());
    auto* bytes = reinterpret_cast<uint8_t*>(values.data());
    for (size_t i = 0; i < array.bytes(); i += sizeof(uint16_t)) {
      const auto bits = static_cast<uint16_t>(rng_());
      std::copy_n(reinterpret_cast<const uint8_t*>(&bits), sizeof(bits), bytes + i);
    }
    array.CopyFrom(values);
  }

  const PagedKvShape shape_;
  DeviceKv kv_;
  std::mt19937_64 rng_{1};
};

class SwapDeviceTest : public ::testing::TestWithParam<Case> {};

TEST_P(SwapDeviceTest, AllComesBackIntoAnotherSlot) {
  const PagedKvShape shape = Shape(GetParam(), GetParam().layers * GetParam().kv_heads * 40);
  Cache cache(shape);
  for (const int64_t length : {1, 63, 64, 65, 700, 64 * 20, 64 * 20 + 1}) {
    SCOPED_TRACE(length);
    cache.Begin(0, 0, length);
    cache.Begin(1, 0, 130);
    cache.EvictSome(0);
    cache.Randomize();
    const Contents contents = cache.ContentsOf(0), other = cache.ContentsOf(1);
    const int64_t live = cache.LivePages(0);
    const Range range(shape, live);
    cache.SwapOut(0, range);
    ASSERT_EQ(Difference(cache.ContentsOf(0), contents), "");
    // Again, and all in a row: what is enqueued behind it may start early, and must wait.
    cache.SwapOut(0, range);
    cache.Release(0);
    cache.SwapIn(range, 3);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cache.Fault(), PoolFault::kNone) << Describe(cache.Fault());
    EXPECT_EQ(Difference(cache.ContentsOf(3), contents), "");
    EXPECT_EQ(Difference(cache.ContentsOf(1), other), "");
    EXPECT_EQ(range.TouchedBehind(), 0);
    EXPECT_EQ(cache.kv().sole_pages.ToHost()[3], live);
    cache.CheckOwners();
    for (const int32_t slot : {0, 1, 3}) cache.Release(slot);
    cache.CheckOwners();
    EXPECT_EQ(cache.FreeCount(), shape.num_pages);
  }
}

// Other pages, which others have written to meanwhile, and shared ones as copies.
TEST_P(SwapDeviceTest, SharedPagesComeBackAsCopies) {
  const PagedKvShape shape = Shape(GetParam(), GetParam().layers * GetParam().kv_heads * 40);
  Cache cache(shape);
  cache.Begin(0, 0, 700);
  cache.EvictSome(0);
  cache.Randomize();
  ASSERT_EQ(Share(0, 1, cache.kv().view, nullptr), cudaSuccess);
  const Contents contents = cache.ContentsOf(0), snapshot = cache.ContentsOf(1);
  const Range range(shape, cache.LivePages(0));
  cache.SwapOut(0, range);
  cache.Release(0);
  cache.Begin(2, 0, 900);
  cache.SwapIn(range, 0);
  EXPECT_EQ(Difference(cache.ContentsOf(0), contents), "");
  EXPECT_EQ(Difference(cache.ContentsOf(1), snapshot), "");
  cache.CheckOwners();
  EXPECT_EQ(cache.Fault(), PoolFault::kNone) << Describe(cache.Fault());
}

// Lists of more than a block's threads, odd groups (whose summaries are not whole 16-byte words),
// wide heads.
INSTANTIATE_TEST_SUITE_P(Shapes, SwapDeviceTest,
                         ::testing::Values(Case{3, 7, 2, 16, true, true},
                                           Case{3, 5, 1, 64, false, true},
                                           Case{2, 3, 3, 128, true, false},
                                           Case{33, 32, 1, 16, false, false}));

constexpr Case kSmall{2, 3, 1, 16, true, true};

TEST(SwapFaultTest, ATooSmallRangeIsReported) {
  const PagedKvShape shape = Shape(kSmall, 6 * 20);
  Cache cache(shape);
  cache.Begin(0, 0, 300);
  const Range small(shape, 6 * 5 - 1), range(shape, 6 * 5);
  cache.SwapOut(0, range);
  cudaDeviceSynchronize();
  EXPECT_EQ(cache.Fault(), PoolFault::kNone);
  cache.SwapOut(0, small);
  cudaDeviceSynchronize();
  EXPECT_EQ(cache.Fault(), PoolFault::kSwapOverflow) << Describe(cache.Fault());
  EXPECT_EQ(small.TouchedBehind(), 0);
  // Nor is more read than the range has.
  cache.kv().pool_fault.CopyFrom({PoolFault::kNone});
  cache.SwapIn(small, 1);
  cudaDeviceSynchronize();
  EXPECT_EQ(cache.Fault(), PoolFault::kSwapOverflow) << Describe(cache.Fault());
  EXPECT_EQ(cache.kv().length.ToHost()[1], 0);
  cache.CheckOwners();
}

TEST(SwapFaultTest, ATooSmallPoolIsReported) {
  const PagedKvShape shape = Shape(kSmall, 6 * 9);
  Cache cache(shape);
  cache.Begin(0, 0, 300);
  const Range range(shape, 6 * 5);
  cache.SwapOut(0, range);
  cache.SwapIn(range, 1);  // four of five pages a list are free
  cudaDeviceSynchronize();
  EXPECT_EQ(cache.Fault(), PoolFault::kOverdrawn) << Describe(cache.Fault());
  EXPECT_EQ(cache.kv().length.ToHost()[1], 0);
  cache.CheckOwners();
}

TEST(SwapFaultTest, ASequenceBeyondItsTableIsReported) {
  const PagedKvShape shape = Shape(kSmall, 6 * 9);
  Cache cache(shape);
  cache.Begin(0, 0, 300);
  const Range range(shape, 6 * 5);
  cache.SwapOut(0, range);
  cache.Release(0);
  cudaDeviceSynchronize();
  *reinterpret_cast<int64_t*>(range.slot().data) = kMaxPages * kPageTokens + 1;
  cache.SwapIn(range, 0);
  cudaDeviceSynchronize();
  EXPECT_EQ(cache.Fault(), PoolFault::kTableEnd) << Describe(cache.Fault());
  cache.CheckOwners();
}

// Slots that grow, share, go and come back, in random order.
TEST(SwapPoolTest, OwnersAreRightInAnyOrder) {
  const PagedKvShape shape = Shape({3, 7, 2, 16, true, true}, 21 * 100);
  Cache cache(shape);
  std::mt19937_64 rng(2);
  std::vector<int64_t> lengths(kSlots, 0);
  const Range range(shape, 21 * kMaxPages);
  int64_t away = -1;  // length of what is in the range
  Contents contents;
  int swaps = 0;
  for (int step = 0; step < 200 && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(step);
    const int a = static_cast<int>(rng() % kSlots), b = static_cast<int>(rng() % kSlots);
    auto& length = lengths[static_cast<size_t>(a)];
    const auto kind = rng() % 4;
    if (kind == 0 && length < 24 * kPageTokens) {
      const auto rows = static_cast<int64_t>(rng() % 300 + 1);
      cache.Begin(a, length, rows);
      length += rows;
    } else if (kind == 1 && a != b) {
      cache.Release(b);
      ASSERT_EQ(Share(a, b, cache.kv().view, nullptr), cudaSuccess);
      lengths[static_cast<size_t>(b)] = length / kPageTokens * kPageTokens;
    } else if (kind == 2 && length > 0) {
      contents = cache.ContentsOf(a);
      cache.SwapOut(a, range);
      cache.Release(a);
      away = length;
      length = 0;
    } else if (kind == 3 && away >= 0) {
      cache.Release(a);
      if (cache.FreeCount() < 21 * PagesFor(away)) continue;
      cache.SwapIn(range, a);
      length = away;
      ++swaps;
      EXPECT_EQ(Difference(cache.ContentsOf(a), contents), "");
    }
    cache.CheckOwners();
  }
  EXPECT_EQ(cache.Fault(), PoolFault::kNone) << Describe(cache.Fault());
  EXPECT_GT(swaps, 20);
}

}  // namespace
}  // namespace fox::cuda::testing
