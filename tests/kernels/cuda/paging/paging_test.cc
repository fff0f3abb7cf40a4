// The page pool on the device against a model on the host: random steps, evictions and releases.
// After each, every page has exactly one owner, and pages, windows and plans follow the rule.
#include "kernels/cuda/paging/paging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>

#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

// The host's model of a pool, and its copy of the device's state.
class PoolModel {
 public:
  explicit PoolModel(DeviceKv& kv)
      : kv_(kv),
        shape_(kv.view.shape),
        length(static_cast<size_t>(shape_.max_slots), 0),
        first_live(DeviceKv::Lists(shape_), 0),
        max_log_evicted_mass(DeviceKv::Lists(shape_), DeviceKv::kNothing),
        evicted_log_mass(DeviceKv::Heads(shape_), DeviceKv::kNothing) {
    Download();
  }

  void Download() {
    free_stack = kv_.free_stack.ToHost();
    free_count = kv_.free_count.ToHost()[0];
    table = kv_.page_table.ToHost();
  }
  int64_t lists_per_slot() const { return shape_.lists_per_slot(); }
  size_t List(int slot, int64_t list) const {
    return static_cast<size_t>(slot * lists_per_slot() + list);
  }
  int32_t& Page(size_t list, int64_t p) {
    return table[list * static_cast<size_t>(shape_.max_pages) + static_cast<size_t>(p)];
  }

  // Pages that a batch needs.
  int64_t Demand(const std::vector<BatchEntry>& batch) const {
    int64_t pages = 0;
    for (const BatchEntry& e : batch) {
      if (e.slot >= 0) pages += PagesFor(e.position + e.rows) - PagesFor(e.position);
    }
    return pages * lists_per_slot();
  }
  // Allocates pages from the top of the stack, sequence by sequence, list by list.
  void Grow(const std::vector<BatchEntry>& batch) {
    for (const BatchEntry& e : batch) {
      if (e.slot < 0) continue;
      for (int64_t list = 0; list < lists_per_slot(); ++list) {
        for (int p = PagesFor(e.position); p < PagesFor(e.position + e.rows); ++p) {
          Page(List(e.slot, list), p) = free_stack[static_cast<size_t>(--free_count)];
        }
      }
      length[static_cast<size_t>(e.slot)] = e.position + e.rows;
    }
  }

  // The device agrees with the model, and every page has one owner.
  void Check() {
    const std::vector<int32_t> expected_table = table;
    const int expected_free = free_count;
    Download();
    ASSERT_EQ(free_count, expected_free);
    EXPECT_EQ(kv_.length.ToHost(), length);
    EXPECT_EQ(kv_.first_live.ToHost(), first_live);
    EXPECT_EQ(kv_.max_log_evicted_mass.ToHost(), max_log_evicted_mass);
    EXPECT_EQ(kv_.evicted_log_mass.ToHost(), evicted_log_mass);
    std::vector<int> owners(static_cast<size_t>(shape_.num_pages), 0);
    for (int i = 0; i < free_count; ++i) {
      ++owners.at(static_cast<size_t>(free_stack[static_cast<size_t>(i)]));
    }
    for (int slot = 0; slot < shape_.max_slots; ++slot) {
      for (int64_t l = 0; l < lists_per_slot(); ++l) {
        const size_t list = List(slot, l);
        for (int p = first_live[list]; p < PagesFor(length[static_cast<size_t>(slot)]); ++p) {
          ++owners.at(static_cast<size_t>(Page(list, p)));
        }
      }
    }
    EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), shape_.num_pages);
    EXPECT_EQ(table, expected_table);
  }

 private:
  DeviceKv& kv_;
  const PagedKvShape shape_;

 public:
  std::vector<int64_t> length;
  std::vector<int32_t> first_live;
  std::vector<double> max_log_evicted_mass, evicted_log_mass;
  std::vector<int32_t> free_stack, table;
  int free_count = 0;
};

// The rows of `batch` in pieces, cut at multiples of `unit`; sequences with one row only if asked.
std::vector<RowBlock> Pieces(const std::vector<BatchEntry>& batch, int unit, bool single_rows) {
  std::vector<RowBlock> pieces;
  int64_t row = 0;
  for (size_t s = 0; s < batch.size(); ++s) {
    for (int64_t r = 0; r < batch[s].rows; ++r, ++row) {
      const int64_t position = batch[s].position + r;
      if (batch[s].slot < 0 || (batch[s].rows == 1 && !single_rows)) continue;
      if (r == 0 || position % unit == 0) {
        pieces.push_back({static_cast<int32_t>(s), batch[s].slot, static_cast<int32_t>(row), 0,
                          static_cast<int32_t>(position)});
      }
      ++pieces.back().count;
    }
  }
  return pieces;
}

void ExpectPieces(const std::vector<RowBlock>& device, int count,
                  const std::vector<RowBlock>& expected) {
  ASSERT_EQ(count, static_cast<int>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::memcmp(&device[i], &expected[i], sizeof(RowBlock)), 0) << i;
  }
}

void ExpectPlan(const std::vector<BatchEntry>& batch, const PagedKvShape& shape,
                const DeviceWork& schedule, PoolModel& model) {
  ExpectPieces(schedule.blocks.ToHost(), schedule.num_blocks.ToHost()[0],
               Pieces(batch, kPageTokens, true));
  ExpectPieces(schedule.tiles.ToHost(), schedule.num_tiles.ToHost()[0],
               Pieces(batch, kTileRows, false));
  const std::vector<SeqHead> seq_heads = schedule.seq_heads.ToHost();
  const std::vector<BlockStart> starts = schedule.block_starts.ToHost();
  for (int layer = 0; layer < shape.layers; ++layer) {
    SCOPED_TRACE(::testing::Message() << "layer " << layer);
    const auto first = static_cast<size_t>(layer * schedule.view.max_seq_heads);
    int32_t place = 0, splits = 0, row = 0, next = 0;
    for (size_t s = 0; s < batch.size(); row += static_cast<int32_t>(batch[s++].rows)) {
      const BatchEntry& e = batch[s];
      for (int head = 0; head < shape.q_heads; ++head) {
        SCOPED_TRACE(::testing::Message() << "sequence " << s << " head " << head);
        if (e.slot < 0 || e.rows != 1) continue;
        if (head % shape.group() % HeadsTogether(shape) != 0) continue;
        const size_t list =
            model.List(e.slot, static_cast<int64_t>(layer) * shape.kv_heads + head / shape.group());
        const SeqHead& seq_head = seq_heads[first + static_cast<size_t>(place)];
        const int last = PagesFor(e.position + 1) - 1, begin = splits;
        splits += NumSplits(model.first_live[list], last);
        EXPECT_EQ((std::array{seq_head.index, seq_head.place, seq_head.begin, seq_head.end}),
                  (std::array{static_cast<int>(s) * shape.q_heads + head, place++, begin, splits}));
        EXPECT_EQ((std::array{seq_head.length, seq_head.first_live, seq_head.row, seq_head.own}),
                  (std::array{static_cast<int>(e.position) + 1, model.first_live[list], row,
                              model.Page(list, last)}));
      }
    }
    // Blocks share the splits in order.
    const BlockStart* start = &starts[static_cast<size_t>(layer * DeviceWork::kDecodeBlocks)];
    for (int b = 0; b < DeviceWork::kDecodeBlocks; ++b, ++start) {
      SCOPED_TRACE(::testing::Message() << "block " << b);
      EXPECT_EQ(start->first, next);
      next = start->last;
      if (start->first == start->last) continue;
      const SeqHead& owner = start->seq_head;
      const SeqHead& planned = seq_heads[first + static_cast<size_t>(owner.place)];
      EXPECT_EQ(std::memcmp(&owner, &planned, offsetof(SeqHead, group_head)), 0);
      EXPECT_TRUE(owner.begin <= start->first && start->first < owner.end);
      const int last = LastPage(owner), shift = SplitShift(last + 1 - owner.first_live);
      EXPECT_EQ(start->first_page, SplitPage(owner.first_live, shift, start->first, owner.begin));
      if (start->first == owner.begin) {
        EXPECT_EQ(start->first_page, owner.first_live);
      }
      for (int i = 0; i < kStartPages; ++i) {
        const int page = std::min(start->first_page + i, last);
        EXPECT_EQ(start->pages[i], model.Page(static_cast<size_t>(owner.list), page))
            << "page " << i;
      }
    }
    EXPECT_EQ(next, splits);
  }
}

// The inputs of Evict's decisions, equal on host and device.
struct Decisions {
  Decisions(const PagedKvShape& shape, AcpMode mode, std::mt19937_64& rng) : acp(mode) {
    std::normal_distribution<double> normal;
    const size_t heads = static_cast<size_t>(shape.layers * shape.q_heads);
    for (size_t i = 0; i < heads; ++i) {
      self_logit_bound.push_back(i % 3 == 0 ? std::numeric_limits<double>::infinity()
                                            : 60 + 20 * normal(rng));
      max_logit_bound.push_back(i % 7 == 6 ? std::numeric_limits<double>::infinity()
                                           : 20 + 5 * normal(rng));
    }
    device_self = DeviceArray<double>(self_logit_bound);
    device_any = DeviceArray<double>(max_logit_bound);
  }

  // Scores that rise with a list's pages and thresholds that fall, with noise, so that windows of
  // all widths arise; here and there a NaN.
  void Randomize(DeviceKv& kv, PoolModel& model, std::mt19937_64& rng) {
    const PagedKvShape& shape = kv.view.shape;
    std::normal_distribution<double> normal;
    const size_t group = DeviceKv::Group(shape), summaries = DeviceKv::Pages(shape) * group;
    log_mass_bound.assign(summaries, 0);
    log_denominator_bound.assign(summaries, 0);
    page_cum_log_f.assign(summaries, 0);
    local.assign(summaries * kPageTokens, 0);
    for (int slot = 0; slot < shape.max_slots; ++slot) {
      const int pages = PagesFor(model.length[static_cast<size_t>(slot)]);
      for (int64_t l = 0; l < model.lists_per_slot(); ++l) {
        const size_t list = model.List(slot, l);
        const double width = 3.0 * static_cast<double>(list * 7 % 41);
        for (int p = model.first_live[list]; p < pages; ++p) {
          for (size_t g = 0; g < group; ++g) {
            const size_t at = static_cast<size_t>(model.Page(list, p)) * group + g;
            log_mass_bound[at] = 2 * p + normal(rng);
            if (rng() % 200 == 0) log_mass_bound[at] = std::nan("");
            log_denominator_bound[at] = width - 2 * p - 10 + normal(rng);
            if (rng() % 100 == 0) log_denominator_bound[at] = std::nan("");
            page_cum_log_f[at] = width - 2 * p - 40 + normal(rng);
            local[at * kPageTokens + kPageTokens - 1] = static_cast<float>(-std::abs(normal(rng)));
          }
        }
      }
    }
    kv.log_mass_bound.CopyFrom(log_mass_bound);
    kv.log_denominator_bound.CopyFrom(log_denominator_bound);
    kv.page_cum_log_f.CopyFrom(page_cum_log_f);
    kv.log_f_offset.CopyFrom(local);
  }

  // The evicted-mass bound of acp.h's rule, one query head.
  double Side(const PagedKvShape& shape, int64_t list_of_slot, int g, int32_t first,
              int32_t last) const {
    const auto group = DeviceKv::Group(shape), in_group = static_cast<size_t>(g);
    const size_t end = static_cast<size_t>(last) * group + in_group;
    const auto head = static_cast<size_t>(list_of_slot) * group + in_group;
    double c_end = UpperCumulativeGate(
        page_cum_log_f[end], static_cast<double>(local[end * kPageTokens + kPageTokens - 1]));
    c_end += kSumRounding * std::fabs(c_end);
    const double threshold = PageThreshold(acp, log_denominator_bound[end], c_end,
                                           self_logit_bound[head], max_logit_bound[head]);
    return log_mass_bound[static_cast<size_t>(first) * group + in_group] + threshold;
  }

  // The state after the eviction of a page, for the heads of a list.
  void Evicted(const PagedKvShape& shape, int64_t list_of_slot, int32_t page, double* out) const {
    const size_t group = DeviceKv::Group(shape);
    for (size_t g = 0; g < group; ++g) {
      out[g] = EvictedLogMass(acp, log_mass_bound[static_cast<size_t>(page) * group + g],
                              max_logit_bound[static_cast<size_t>(list_of_slot) * group + g]);
    }
  }

  // The rule, page end by page end; returns the pages freed of each sequence. `before`: the state
  // just before each of the page ends, in order.
  std::vector<int64_t> Apply(const PagedKvShape& shape, const std::vector<BatchEntry>& batch,
                             PoolModel& model, std::vector<std::vector<double>>* before) const {
    std::vector<int64_t> freed(batch.size(), 0);
    for (size_t s = 0; s < batch.size(); ++s) {
      const BatchEntry& e = batch[s];
      if (e.slot < 0 || !std::isfinite(e.log_tolerance)) continue;
      for (int64_t p = e.position / kPageTokens; p < (e.position + e.rows) / kPageTokens; ++p) {
        const auto heads = model.evicted_log_mass.begin() + e.slot * shape.heads_per_slot();
        before->emplace_back(heads, heads + shape.heads_per_slot());
        for (int64_t l = 0; l < model.lists_per_slot(); ++l) {
          const size_t list = model.List(e.slot, l);
          int32_t& first = model.first_live[list];
          while (first < p) {
            double worst = DeviceKv::kNothing;
            bool may = true;
            for (int g = 0; g < shape.group(); ++g) {
              const double side = Side(shape, l, g, model.Page(list, first), model.Page(list, p));
              may = may && MayDrop(side, 0, e.log_tolerance);
              worst = std::max(worst, side);
            }
            if (!may) break;
            model.max_log_evicted_mass[list] = std::max(
                model.max_log_evicted_mass[list], std::min(worst + kAcpSlack, e.log_tolerance));
            Evicted(shape, l, model.Page(list, first),
                    &model.evicted_log_mass[list * DeviceKv::Group(shape)]);
            ++first;
            ++freed[s];
            ++model.free_count;
          }
        }
      }
    }
    return freed;
  }

  EvictParams Params(int64_t* pages_evicted) const {
    return {acp, device_self.data(), device_any.data(), pages_evicted};
  }

  AcpMode acp;
  std::vector<double> self_logit_bound, max_logit_bound, log_mass_bound, log_denominator_bound,
      page_cum_log_f;
  std::vector<float> local;
  DeviceArray<double> device_self, device_any;
};

// A pool on the device and the model that it must equal.
struct Pool {
  Pool(uint64_t seed, const PagedKvShape& shape, AcpMode acp = AcpMode::kCertified)
      : rng(seed), kv(shape), model(kv), decisions(shape, acp, rng) {}

  // One step: pages, plan, evictions.
  void Step(const std::vector<BatchEntry>& batch) {
    const PagedKvShape& shape = kv.view.shape;
    const DeviceBatch on_device(batch);
    const DeviceWork schedule(shape, on_device.view.num_rows, on_device.view.num_seqs);
    ASSERT_EQ(BeginStep(on_device.view, kv.view, schedule.view, nullptr), cudaSuccess);
    model.Grow(batch);
    model.Check();
    ExpectPlan(batch, shape, schedule, model);
    decisions.Randomize(kv, model, rng);
    const DeviceArray<int64_t> evicted(std::vector<int64_t>(batch.size(), 5));
    StepSchedule recorded = schedule.view;
    const int64_t rows = on_device.view.num_rows, heads = shape.heads_per_slot();
    const DeviceArray<double> evicted_before(
        static_cast<size_t>((rows / kPageTokens + on_device.view.num_seqs) * heads));
    recorded.evicted_before = evicted_before.data();
    ASSERT_EQ(Evict(on_device.view, decisions.Params(evicted.data()), kv.view, recorded, nullptr),
              cudaSuccess);
    std::vector<std::vector<double>> before;
    std::vector<int64_t> freed = decisions.Apply(shape, batch, model, &before);
    ExpectEvictedBefore(batch, evicted_before.ToHost(), before);
    for (int64_t& count : freed) count += 5;
    EXPECT_EQ(evicted.ToHost(), freed);
    model.Check();
  }

  // The states that Evict has recorded are those of the model.
  static void ExpectEvictedBefore(const std::vector<BatchEntry>& batch,
                                  const std::vector<double>& got,
                                  const std::vector<std::vector<double>>& before) {
    auto want = before.begin();
    int64_t row = 0;
    for (size_t s = 0; s < batch.size(); ++s) {
      const BatchEntry& e = batch[s];
      for (int64_t r = 0; r < e.rows; ++r, ++row) {
        if (e.slot < 0 || !std::isfinite(e.log_tolerance)) continue;
        if ((e.position + r) % kPageTokens != kPageTokens - 1) continue;
        const auto at = got.begin() + StepSchedule::PageEndIndex(row, static_cast<int>(s)) *
                                          static_cast<int64_t>(want->size());
        EXPECT_TRUE(std::equal(want->begin(), want->end(), at))
            << "sequence " << s << ", row " << r;
        ++want;
      }
    }
    EXPECT_EQ(want, before.end());
  }

  void Empty(const std::vector<int32_t>& slots) {
    ASSERT_EQ(Release(slots.data(), static_cast<int>(slots.size()), kv.view, nullptr), cudaSuccess);
    for (const int32_t slot : slots) {
      int64_t& length = model.length[static_cast<size_t>(slot)];
      for (int64_t l = 0; l < model.lists_per_slot(); ++l) {
        const size_t list = model.List(slot, l);
        model.free_count += PagesFor(length) - model.first_live[list];
        model.first_live[list] = 0;
        model.max_log_evicted_mass[list] = DeviceKv::kNothing;
        std::fill_n(&model.evicted_log_mass[list * DeviceKv::Group(kv.view.shape)],
                    DeviceKv::Group(kv.view.shape), DeviceKv::kNothing);
      }
      length = 0;
    }
    model.Check();
  }

  std::mt19937_64 rng;
  DeviceKv kv;
  PoolModel model;
  Decisions decisions;
};

void RunRandomSteps(AcpMode acp, int group, uint64_t seed) {
  const PagedKvShape shape = NarrowShape(3, 5, group, 9, 120, 15 * 200);
  Pool pool(seed, shape, acp);
  std::mt19937_64& rng = pool.rng;
  for (int step = 0; step < 60 && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(step);
    std::vector<BatchEntry> batch;
    for (int slot = 0; slot < shape.max_slots; ++slot) {
      if (rng() % 3 == 0) continue;
      const int64_t length = pool.model.length[static_cast<size_t>(slot)];
      int64_t rows = step % 2 == 0 ? 1 : static_cast<int64_t>(rng() % 700 + 1);
      if (rng() % 4 == 0) rows = kPageTokens - length % kPageTokens;
      if (length + rows > int64_t{shape.max_pages} * kPageTokens) continue;
      const double infinity = std::numeric_limits<double>::infinity();
      batch.push_back({slot, length, rows, rng() % 6 == 0 ? -infinity : -10});
      if (rng() % 5 == 0) batch.push_back({-1, 0, 1, -10});
    }
    std::shuffle(batch.begin(), batch.end(), rng);
    while (pool.model.Demand(batch) > pool.model.free_count) batch.pop_back();
    if (!batch.empty()) pool.Step(batch);
    if (step % 7 == 6) {
      const auto slot = static_cast<int32_t>(rng() % 8);
      pool.Empty({slot, slot + 1});
    }
  }
}

TEST(PagingTest, RandomStepsCertified) { RunRandomSteps(AcpMode::kCertified, 1, 1); }
TEST(PagingTest, RandomStepsCertifiedGrouped) { RunRandomSteps(AcpMode::kCertified, 4, 2); }
TEST(PagingTest, RandomStepsPaper) { RunRandomSteps(AcpMode::kPaper, 2, 3); }

TEST(PagingTest, LongPrefillEvictsAcrossManyWindows) {
  Pool pool(4, NarrowShape(2, 6, 1, 2, 400, 12 * 600));
  pool.Step({{1, 0, 16384 + 37, -10}});
  pool.Step({{0, 0, 63, -10}, {1, 16384 + 37, 8000, -10}});
  EXPECT_GT(*std::max_element(pool.model.first_live.begin(), pool.model.first_live.end()), 100);
}

TEST(PagingTest, ManySequences) {
  const int seqs = 512;
  Pool pool(5, NarrowShape(2, 8, 3, seqs, 4, seqs * 16 * 4));
  std::vector<BatchEntry> prompts, tokens;
  for (int slot = 0; slot < seqs; ++slot) {
    const int64_t rows = 1 + static_cast<int64_t>(pool.rng() % 130);
    prompts.push_back({slot, 0, rows, -10});
    tokens.push_back({slot % 17 == 16 ? -1 : slot, slot % 17 == 16 ? 0 : rows, 1, -10});
  }
  pool.Step(prompts);
  pool.Step(tokens);
}

// Several thread blocks plan each layer.
TEST(PagingTest, ManyLayers) {
  Pool pool(7, NarrowShape(24, 3, 2, 3, 40, 3 * 72 * 40));
  pool.Step({{0, 0, 2500, -10}, {1, 0, 64, -10}, {2, 0, 700, -10}});
  pool.Step({{0, 2500, 1, -10}, {1, 64, 1, -10}, {2, 700, 1, -10}});
}

TEST(PagingTest, ManyLayersByClusters) {
  const int layers = 24, heads = 3;
  const PagedKvShape shape = NarrowShape(layers, heads, 1, 1, 40, layers * heads * 40);
  Pool pool(8, shape);
  pool.Step({{0, 0, 2500, -10}});
  const std::vector<BatchEntry> token{{0, 2500, 1, -10}};
  const DeviceBatch batch(token);
  DeviceWork work(shape, 1, 1);
  const DeviceArray<BlockStart> device_starts(static_cast<size_t>(layers * heads * kClusterBlocks));
  work.view.by_clusters = true;
  work.view.decode_blocks = heads * kClusterBlocks;
  work.view.block_starts = device_starts.data();
  ASSERT_EQ(BeginStep(batch.view, pool.kv.view, work.view, nullptr), cudaSuccess);
  pool.model.Grow(token);
  pool.model.Check();
  const std::vector<BlockStart> starts = device_starts.ToHost();
  for (size_t i = 0; i < starts.size(); ++i) {
    SCOPED_TRACE(i);
    const BlockStart& start = starts[i];
    const size_t list = i / kClusterBlocks;
    const int first = pool.model.first_live[list], last = PagesFor(2501) - 1;
    const int splits = NumSplits(first, last), begin = kClusterBlockSplits * (i % kClusterBlocks);
    EXPECT_EQ(start.first, begin);
    EXPECT_EQ(start.last, std::max(begin, splits));
    if (begin >= splits) continue;
    EXPECT_EQ(start.first_page, SplitPage(first, SplitShift(last + 1 - first), begin, 0));
    EXPECT_EQ(start.seq_head.index, static_cast<int>(list % heads));
    EXPECT_EQ((std::array{start.seq_head.length, start.seq_head.first_live, start.seq_head.own}),
              (std::array{2501, first, pool.model.Page(list, last)}));
    for (int p = 0; p < kStartPages; ++p) {
      EXPECT_EQ(start.pages[p], pool.model.Page(list, std::min(start.first_page + p, last)))
          << "page " << p;
    }
  }
}

TEST(PagingTest, ReleaseResetsTheState) {
  Pool pool(6, NarrowShape(2, 3, 2, 4, 8, 6 * 20));
  DeviceKv& kv = pool.kv;
  pool.Step({{0, 0, 100, -10}, {2, 0, 200, -10}, {3, 0, 64, -10}});
  for (DeviceArray<double>* state : {&kv.cum_log_f, &kv.log_mass, &kv.decay_sum, &kv.key_sum}) {
    state->CopyFrom(std::vector<double>(state->size(), 7.0));
  }
  pool.Empty({2, 0});
  const auto expect = [&](const DeviceArray<double>& state, double empty) {
    const std::vector<double> values = state.ToHost();
    const size_t per_slot = values.size() / 4;
    for (size_t i = 0; i < values.size(); ++i) {
      const bool released = i / per_slot == 0 || i / per_slot == 2;
      ASSERT_EQ(values[i], released ? empty : 7.0) << i;
    }
  };
  expect(kv.cum_log_f, 0);
  expect(kv.log_mass, DeviceKv::kNothing);
  expect(kv.decay_sum, 0);
  expect(kv.key_sum, 0);
}

}  // namespace
}  // namespace fox::cuda::testing
