// Splits over keys in PrefillSm90: the plan against the host's, results against float64 attention
// and against attention without splits. Neighbours, and whether splits run in parallel or serially,
// change no bits.
#include "kernels/cuda/attention/prefill/sm90/split_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/runtime/key_splits.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_cache.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Room for the splits of a cache's tiles, poisoned.
class SplitSpace {
 public:
  SplitSpace(const DeviceCache& cache, int least_shift, int64_t max_rows, int64_t max_splits)
      : partial_rows_(static_cast<size_t>(cache.options().q_heads * cache.schedule().max_tiles)),
        splits_(static_cast<size_t>(max_splits)),
        split_tiles_(static_cast<size_t>(max_splits)),
        num_splits_(1),
        num_split_tiles_(1),
        splits_first_(1),
        out_(static_cast<size_t>((kSerialRows + max_rows) * cache.options().head_dim)),
        softmax_(static_cast<size_t>((kSerialRows + max_rows) * 2)),
        stop_at_(static_cast<size_t>(kSerialRows + max_rows)) {
    schedule_ = cache.schedule();
    schedule_.key_splits = {max_rows,
                            max_splits,
                            least_shift,
                            0,  // no tile is too early
                            partial_rows_.data(),
                            splits_.data(),
                            split_tiles_.data(),
                            num_splits_.data(),
                            num_split_tiles_.data(),
                            splits_first_.data(),
                            out_.data(),
                            softmax_.data(),
                            stop_at_.data()};
  }

  // The cache's schedule, with splits.
  const StepSchedule& schedule() const { return schedule_; }
  StepSchedule& schedule() { return schedule_; }
  void PoisonPartials() {
    out_.Fill(kPoison);
    softmax_.Fill(kPoison);
    stop_at_.Fill(kPoison);
  }
  std::vector<int32_t> PartialRows() const { return partial_rows_.ToHost(); }
  // The schedule with splits that all run serially.
  StepSchedule serial() const {
    StepSchedule serial = schedule_;
    serial.key_splits.partial_rows = nullptr;
    return serial;
  }
  std::vector<KeySplit> Splits() const { return FirstOf(splits_, num_splits_); }
  bool SplitsFirst() const { return splits_first_.ToHost()[0] != 0; }
  std::vector<SplitHeadTile> Split() const { return FirstOf(split_tiles_, num_split_tiles_); }

 private:
  template <typename T>
  static std::vector<T> FirstOf(const DeviceArray<T>& array, const DeviceArray<int32_t>& count) {
    std::vector<T> values = array.ToHost();
    const int32_t n = count.ToHost()[0];
    EXPECT_GE(n, 0);
    EXPECT_LE(static_cast<size_t>(n), values.size());
    values.resize(std::min(values.size(), static_cast<size_t>(std::max(n, 0))));
    return values;
  }

  DeviceArray<int32_t> partial_rows_;
  DeviceArray<KeySplit> splits_;
  DeviceArray<SplitHeadTile> split_tiles_;
  DeviceArray<int32_t> num_splits_, num_split_tiles_, splits_first_;
  DeviceArray<float> out_, softmax_, stop_at_;
  StepSchedule schedule_;
};

constexpr int64_t kRoomyRows = 300000, kRoomySplits = 1 << 14;

std::vector<uint16_t> Attend(DeviceCache& cache, const StepSchedule& schedule) {
  EXPECT_EQ(
      PrefillSm90(cache.batch(), cache.params(), cache.kv(), schedule, cache.num_tiles(), nullptr),
      cudaSuccess);
  return cache.out_array().ToHost();
}

// Attends once more, with everything poisoned before.
std::vector<uint16_t> AttendAgain(DeviceCache& cache, SplitSpace& space,
                                  const StepSchedule& schedule) {
  cache.ResetOutputs();
  space.PoisonPartials();
  return Attend(cache, schedule);
}

// Short chunks after nothing, one token and some thousands, grouped heads with long and short
// memories; among them decode rows, padding and a whole prompt. The mode decides whether outputs
// are gated, normed or both.
CacheOptions Chunks(AcpMode acp, int head_dim) {
  CacheOptions options;
  options.acp = acp;
  options.head_dim = head_dim;
  options.q_heads = 4;
  options.kv_heads = 2;
  options.gate_means = {9, 8, 1, 5};
  options.output_norm = acp != AcpMode::kOff;
  options.output_gate = acp != AcpMode::kPaper;
  options.seed = static_cast<uint64_t>(head_dim) + static_cast<uint64_t>(acp);
  options.sequences = {{3100, 100, -10, 8},  {2, 2, -10, 3},      {64, 63, -10, 0},
                       {1065, 64, -10, 5},   {2000, 1, -10, 6},   {2067, 65, -kInfinity, 1},
                       {4128, 128, -10, 9},  {1, 1, -10, -1},     {5130, 129, -10, 2},
                       {3000, 512, -10, 12}, {900, 900, -10, 10}, {4500, 2, -10, 4}};
  return options;
}

// Together with other sequences it needs more workspace than exists, so some splits run serially.
constexpr CacheSequence kLongPrompt{4200, 4100, -10, 14};

// ---- The plan.

// Parallel splits of a head tile by the host's rule; one: none.
int SplitsOf(const DeviceCache& cache, const KeySplits& splits, int head, int tile) {
  const RowBlock& rows = cache.tiles()[static_cast<size_t>(tile)];
  const auto at = static_cast<size_t>(head * cache.schedule().max_tiles + tile);
  const int first = std::min(cache.boundaries()[at], rows.position / kPageTokens) / 2;
  return NumKeySplits(first, rows.position / kTileRows, splits.least_shift,
                      splits.first_split_tile);
}

// Which head tiles are split, where their results go (without gaps, none twice), and the lists of
// splits.
void ExpectPlan(const DeviceCache& cache, const SplitSpace& space) {
  const std::vector<int32_t> partial_rows = space.PartialRows();
  std::set<std::tuple<int, int, int>> splits;
  std::set<std::pair<int, int>> split_tiles;
  int64_t row = kSerialRows;
  const int group = cache.options().q_heads / cache.options().kv_heads;
  for (int h = 0; h < cache.options().q_heads; ++h) {
    for (int t = 0; t < cache.num_tiles(); ++t) {
      SCOPED_TRACE("head " + std::to_string(h) + " tile " + std::to_string(t));
      const RowBlock& rows = cache.tiles()[static_cast<size_t>(t)];
      if (!space.schedule().wide.Covers(rows.seq, h / group, cache.options().kv_heads)) continue;
      const int count = SplitsOf(cache, space.schedule().key_splits, h, t);
      const int32_t got = partial_rows[static_cast<size_t>(h * cache.schedule().max_tiles + t)];
      ASSERT_EQ(got, count > 1 ? row : -1) << count;
      if (count == 1) continue;
      row += int64_t{count} * rows.count;
      split_tiles.insert({h, t});
      for (int i = 1; i < count; ++i) splits.insert({h, t, i});
    }
  }
  std::set<std::tuple<int, int, int>> got_splits;
  for (const KeySplit& split : space.Splits()) {
    EXPECT_TRUE(got_splits.insert({split.head, split.tile, split.index}).second) << "twice";
  }
  EXPECT_EQ(got_splits, splits);
  std::set<std::pair<int, int>> got_tiles;
  for (const SplitHeadTile& head_tile : space.Split()) {
    EXPECT_TRUE(got_tiles.insert({head_tile.head, head_tile.tile}).second) << "twice";
  }
  EXPECT_EQ(got_tiles, split_tiles);
  EXPECT_FALSE(splits.empty());
}

// Head tiles too early to be split may be longer than any split, and then come first.
TEST(KeySplitsTest, EarlyRowsAreNotSplitAndComeFirst) {
  CacheOptions options = Chunks(AcpMode::kOff, 32);
  options.sequences.push_back(kLongPrompt);
  const DeviceCache cache(options);
  SplitSpace space(cache, 0, 4 * kRoomyRows, 4 * kRoomySplits);
  space.schedule().key_splits.first_split_tile = 20;
  ASSERT_EQ(PlanKeySplits(cache.kv().shape, space.schedule(), nullptr), cudaSuccess);
  ASSERT_NO_FATAL_FAILURE(ExpectPlan(cache, space));
  EXPECT_FALSE(space.SplitsFirst());
}

// The host omits the kernels for a step that ends before the first tile that may be split.
TEST(KeySplitsTest, TheHostKnowsWhatIsTooEarly) {
  KeySplits splits;
  splits.first_split_tile = 20;
  BatchView batch;
  EXPECT_TRUE(MaySplit(batch, splits)) << "nothing is known";
  batch.max_tokens = 20 * kTileRows;
  EXPECT_FALSE(MaySplit(batch, splits));
  ++batch.max_tokens;
  EXPECT_TRUE(MaySplit(batch, splits));
}

// More head tiles than the plan's block has threads.
TEST(KeySplitsTest, PlanOfManyHeadTiles) {
  CacheOptions options;
  options.head_dim = 32;
  options.q_heads = options.kv_heads = 32;
  options.gate_means = {9, 1};
  options.sequences = {{3000, 2500, -10, 0}, {700, 100, -10, 1}, {2000, 1800, -10, 2}};
  const DeviceCache cache(options);
  ASSERT_GT(cache.num_tiles() * options.q_heads, 1024);
  const SplitSpace space(cache, 1, 2000000, 1 << 15);
  ASSERT_EQ(PlanKeySplits(cache.kv().shape, space.schedule(), nullptr), cudaSuccess);
  ASSERT_NO_FATAL_FAILURE(ExpectPlan(cache, space));
}

// A launch that has the pages of some lists plans their head tiles alone, without gaps.
TEST(KeySplitsTest, PlanOfSomeLists) {
  const CacheOptions options = Chunks(AcpMode::kOff, 32);
  const DeviceCache cache(options);
  SplitSpace space(cache, 0, kRoomyRows, kRoomySplits);
  WidePages& wide = space.schedule().wide;
  wide.pages = 1;
  const int lists = static_cast<int>(options.sequences.size()) * options.kv_heads, some = 5;
  for (wide.first = 0; wide.first < lists; wide.first += some) {
    SCOPED_TRACE(wide.first);
    wide.end = std::min(lists, wide.first + some);
    ASSERT_EQ(PlanKeySplits(cache.kv().shape, space.schedule(), nullptr), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(ExpectPlan(cache, space));
  }
}

// ---- Results.

struct SplitCase {
  std::string name;
  CacheOptions options;
  int least_shift;
  size_t more_splits_than = 0;
};
std::ostream& operator<<(std::ostream& out, const SplitCase& c) { return out << c.name; }

// Bits, for rows that no kernel writes are NaN.
std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(),
                 [](float x) { return std::bit_cast<uint32_t>(x); });
  return bits;
}

std::vector<SplitCase> SplitCases() {
  std::vector<SplitCase> cases;
  const auto add = [&](const std::string& name, const CacheOptions& options) {
    for (const int shift : {0, 3}) {
      cases.push_back({name + "Shift" + std::to_string(shift), options, shift});
    }
  };
  for (const int d : {32, 64, 128}) {
    for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      add("Chunks" + ModeName(acp) + std::to_string(d), Chunks(acp, d));
    }
    CacheOptions unbounded = Chunks(AcpMode::kPaper, d);
    unbounded.qk_norm = false;
    add("WithoutQkNorm" + std::to_string(d), unbounded);
    CacheOptions strong = Chunks(AcpMode::kOff, d);
    strong.strong_gate_rate = 0.001;
    add("StrongGatesOff" + std::to_string(d), strong);
    strong.acp = AcpMode::kCertified;
    cases.push_back({"StrongGatesCertified" + std::to_string(d), strong, 0});
  }
  for (const int d : {64, 128}) {
    for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
      CacheOptions context = Chunks(acp, d);
      context.q_heads = 2;
      context.kv_heads = 1;
      context.gate_means = {10, 7};
      context.sequences = {{70100, 100, -10, 0}, {69000, 1, -10, 1}};
      context.sink = acp != AcpMode::kPaper;
      cases.push_back(
          {"LongContext" + ModeName(acp) + std::to_string(d), context, kMinKeySplitShift});
    }
  }
  // More splits than the device has multiprocessors; more head tiles, so that each thread block
  // runs the serial splits of several, some of whose rows stop before others because gates differ
  // by head.
  CacheOptions many = Chunks(AcpMode::kCertified, 64);
  many.q_heads = many.kv_heads = 12;
  cases.push_back({"ManySplits", many, 0, 500});
  for (const int d : {64, 128}) {
    CacheOptions tiles{.q_heads = 24, .kv_heads = 4, .head_dim = d};
    tiles.gate_means = {9, 8, 7, 6, 5, 4};
    tiles.output_norm = tiles.output_gate = tiles.sink = true;
    tiles.sequences = {{3700, 1500, -10, 0}, {3000, 1000, -10, 1}, {2600, 2600, -6, 2}};
    cases.push_back({"ManyTiles" + std::to_string(d), tiles, 1, 300});
  }
  return cases;
}

class SplitKeysCaseTest : public ::testing::TestWithParam<SplitCase> {};

// Again without log sums and counters, then with serial splits, and with room for half of them: the
// same bits.
TEST_P(SplitKeysCaseTest, MatchesFloat64) {
  if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  DeviceCache cache(GetParam().options);
  SplitSpace space(cache, GetParam().least_shift, 8 * kRoomyRows, 4 * kRoomySplits);
  const std::vector<uint16_t> first = Attend(cache, space.schedule());
  ASSERT_NO_FATAL_FAILURE(cache.CheckOutputs(RowKind::kPrefill, kBf16Rounding));
  ASSERT_FALSE(space.Split().empty());
  ASSERT_GT(space.Splits().size(), GetParam().more_splits_than);
  const std::vector<uint32_t> first_lse = Bits(cache.lse_array().ToHost());
  cache.ResetOutputs();
  space.PoisonPartials();
  AttentionParams bare = cache.params();
  bare.lse = {};
  bare.blocks_total = nullptr;
  bare.blocks_pruned = nullptr;
  ASSERT_EQ(PrefillSm90(cache.batch(), bare, cache.kv(), space.schedule(),
                        space.schedule().max_tiles, nullptr),
            cudaSuccess);
  EXPECT_EQ(cache.out_array().ToHost(), first);
  StepSchedule half = space.schedule();
  half.key_splits.max_splits = static_cast<int64_t>(space.Splits().size()) / 2;
  for (const auto& [schedule, what] :
       {std::pair{space.serial(), "serial"}, {half, "half of them serial"}}) {
    EXPECT_EQ(AttendAgain(cache, space, schedule), first) << what;
    EXPECT_EQ(Bits(cache.lse_array().ToHost()), first_lse) << what;
    cache.CheckCounters(RowKind::kPrefill);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SplitKeysCaseTest, ::testing::ValuesIn(SplitCases()),
                         CaseName<SplitCase>);

// All rows, while the oracle samples some: only bf16 roundings of weights and of outputs differ.
TEST(SplitKeysTest, AgreesWithoutSplits) {
  if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  for (const int head_dim : {32, 64, 128}) {
    const CacheOptions options = Chunks(AcpMode::kOff, head_dim);
    DeviceCache cache(options);
    SplitSpace space(cache, 0, kRoomyRows, kRoomySplits);
    const std::vector<uint16_t> whole = Attend(cache, cache.schedule());
    const std::vector<uint16_t> split = AttendAgain(cache, space, space.schedule());
    const auto stride = static_cast<size_t>(cache.params().out.row_stride);
    int wrong = 0, other = 0;
    for (size_t i = 0; i < whole.size() && wrong < 10; ++i) {
      if (whole[i] == split[i]) continue;
      ++other;
      const double a = Widen(whole[i]), b = Widen(split[i]);
      if (std::abs(a - b) <= 0x1p-6 * std::max(1.0, std::abs(a))) continue;  // false for NaN
      ++wrong;
      ADD_FAILURE() << "head dim " << head_dim << " row " << i / stride << " column " << i % stride
                    << ": " << b << " split, " << a << " whole";
    }
    EXPECT_GT(other, 0) << "nothing was split";
  }
}

// If partial results or splits do not fit, the last head tiles' splits run serially, with the same
// bits.
TEST(SplitKeysTest, WhatDoesNotFitIsSerial) {
  if (!HasPrefillSm90()) GTEST_SKIP() << "no code for sm_90a, or no such device";
  const CacheOptions options = Chunks(AcpMode::kCertified, 64);
  DeviceCache cache(options);
  const SplitSpace roomy(cache, 0, kRoomyRows, kRoomySplits);
  const std::vector<uint16_t> out = Attend(cache, roomy.schedule());
  const std::vector<int32_t> all = roomy.PartialRows();
  const auto splits = static_cast<int64_t>(roomy.Splits().size());
  const int64_t rows = *std::max_element(all.begin(), all.end()) - kSerialRows;
  for (const auto& [max_rows, max_splits] :
       {std::pair{rows / 2, kRoomySplits}, {kRoomyRows, splits / 2}, {int64_t{1}, kRoomySplits}}) {
    SCOPED_TRACE(std::to_string(max_rows) + " rows, " + std::to_string(max_splits) + " splits");
    SplitSpace tight(cache, 0, max_rows, max_splits);
    EXPECT_EQ(AttendAgain(cache, tight, tight.schedule()), out);
    ASSERT_NO_FATAL_FAILURE(cache.CheckOutputs(RowKind::kPrefill, kBf16Rounding));
    EXPECT_FALSE(tight.SplitsFirst());
    const std::vector<int32_t> some = tight.PartialRows();
    bool ended = false;
    for (int h = 0; h < options.q_heads; ++h) {
      for (int t = 0; t < cache.num_tiles(); ++t) {
        const auto at = static_cast<size_t>(h * cache.schedule().max_tiles + t);
        if (all[at] < 0) continue;
        ended = ended || some[at] < 0;
        EXPECT_EQ(some[at], ended ? -1 : all[at]) << "head " << h << " tile " << t;
      }
    }
    EXPECT_TRUE(ended);
  }
}

}  // namespace
}  // namespace fox::cuda::testing
