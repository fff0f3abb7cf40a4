// The real page pool, with pages that several have, under a million random operations beside a
// model of it; the pool's limits; and faults planted in it, each of which the audit, the model or
// the pages' tags must find.
#include "engine/run/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_pool.h"
#include "tests/engine/run/pool_simulation.h"
#include "tests/nightly.h"

namespace fox::pool {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CpuOptions OneThread() {
  CpuOptions options;
  options.threads = 1;
  options.audit = nullptr;  // the campaigns' bounds are made up
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

struct Campaign {
  PoolConfig config;
  int64_t operations;
};

// Half the pages that full slots would take, or fewer.
std::vector<Campaign> Campaigns() {
  std::vector<Campaign> all;
  const auto add = [&](PagedKvShape shape, AcpMode acp, double u, double b, bool constant) {
    all.push_back({{shape, acp, u, b, constant, all.size() + 1}, Amount(25'200, 126'000)});
  };
  const PagedKvShape mha = Shape(2, 2, 2, 4, 5, 10, 100);
  const PagedKvShape gqa = Shape(3, 4, 2, 2, 4, 9, 72);
  const PagedKvShape one = Shape(2, 3, 1, 8, 6, 12, 30);
  const PagedKvShape long_lists = Shape(2, 2, 2, 2, 3, 40, 180);
  for (bool constant : {true, false}) add(mha, AcpMode::kPaper, 0.8, 0.8, constant);
  for (double b : {1.0, kInfinity}) add(mha, AcpMode::kCertified, kInfinity, b, false);
  add(gqa, AcpMode::kPaper, 0.3, 0.3, false);
  add(gqa, AcpMode::kCertified, 2, 2, false);
  add(one, AcpMode::kCertified, kInfinity, kInfinity, true);
  add(long_lists, AcpMode::kPaper, 1.5, 1.5, false);
  add(one, AcpMode::kPaper, kInfinity, kInfinity, false);  // evicts nothing
  return all;
}

// A million operations at night, a fifth of that else.
TEST(KvCacheTest, RandomOperations) {
  CpuOps ops(OneThread());
  int64_t operations = 0, audits = 0;
  for (const Campaign& campaign : Campaigns()) {
    PoolSimulation simulation(campaign.config, ops);
    const PoolCounts& counts = simulation.counts();
    while (counts.operations() < campaign.operations) {
      const std::string error = simulation.Step();
      ASSERT_EQ(error, "") << "seed " << campaign.config.seed << ", step " << counts.steps;
    }
    ASSERT_EQ(simulation.CheckAllTags(), "");
    std::printf(
        "seed %llu: %lld steps, %lld appends, %lld evictions (%lld pages), %lld releases, "
        "%lld shares (%.1f pages at once), %lld swaps, %lld audits, %lld tags, %lld ties\n",
        static_cast<unsigned long long>(campaign.config.seed), static_cast<long long>(counts.steps),
        static_cast<long long>(counts.appends), static_cast<long long>(counts.evictions),
        static_cast<long long>(counts.pages_evicted), static_cast<long long>(counts.releases),
        static_cast<long long>(counts.shares),
        static_cast<double>(counts.shared_pages) / static_cast<double>(counts.audits),
        static_cast<long long>(counts.swaps), static_cast<long long>(counts.audits),
        static_cast<long long>(counts.tags_read), static_cast<long long>(counts.ties));
    // The model decides, not the cache; and there is something to decide.
    EXPECT_LT(counts.ties, 1 + counts.pages_evicted / 100);
    const bool evicts = campaign.config.acp == AcpMode::kCertified ||
                        std::isfinite(campaign.config.max_logit_bound);
    if (evicts) {
      EXPECT_GT(counts.pages_evicted, campaign.operations / 126);
    } else {
      EXPECT_EQ(counts.pages_evicted, 0);
    }
    EXPECT_GT(counts.shares, campaign.operations / 126);
    EXPECT_GT(counts.swaps, campaign.operations / 252);
    EXPECT_GT(counts.shared_pages, counts.audits);
    operations += counts.operations();
    audits += counts.audits;
  }
  std::printf("%lld operations, %lld audits\n", static_cast<long long>(operations),
              static_cast<long long>(audits));
  EXPECT_GE(operations, Amount(200'000, 1'000'000));
  EXPECT_GE(audits, Amount(40'000, 200'000));
}

// ---- Limits.

// `count` rows behind `position` in slot 0 of every layer.
void AppendRows(CpuOps& ops, const KvCache& cache, int64_t position, int64_t count) {
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

TEST(KvCacheTest, ExactlyEnoughPages) {
  CpuOps ops(OneThread());
  KvCache cache(Shape(2, 4, 2, 4, 1, 3, 12), ops);
  AppendRows(ops, cache, 0, 100);
  AppendRows(ops, cache, 100, 92);
  EXPECT_EQ(cache.FreePages(), 0);
  EXPECT_TRUE(cache.Audit().ok());
  cache.Release({0});
  EXPECT_EQ(cache.FreePages(), 12);
  AppendRows(ops, cache, 0, 192);
  EXPECT_EQ(cache.FreePages(), 0);
}

TEST(KvCacheTest, ReleaseTwiceIsHarmless) {
  CpuOps ops(OneThread());
  KvCache cache(Shape(2, 2, 2, 4, 2, 3, 12), ops);
  AppendRows(ops, cache, 0, 130);
  cache.Release({0});
  cache.Release({0, 0, 1});
  EXPECT_EQ(cache.FreePages(), 12);
  EXPECT_TRUE(cache.Audit().ok());
  EXPECT_EQ(cache.MaxLogMass(0), -kInfinity);
  EXPECT_EQ(cache.FirstLive(0), std::vector<int32_t>(4, 0));
}

TEST(KvCacheDeathTest, BrokenPreconditionsEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CpuOps ops(OneThread());
  KvCache small(Shape(2, 4, 2, 4, 1, 3, 11), ops);
  AppendRows(ops, small, 0, 100);
  EXPECT_DEATH(AppendRows(ops, small, 100, 92), "check failed: \\*kv.free_count > 0");
  KvCache cache(Shape(2, 4, 2, 4, 1, 3, 24), ops);
  AppendRows(ops, cache, 0, 100);
  EXPECT_DEATH(AppendRows(ops, cache, 99, 1),
               "check failed: kv.length\\[rows.slot\\] == rows.position");
  EXPECT_DEATH(AppendRows(ops, cache, 101, 1),
               "check failed: kv.length\\[rows.slot\\] == rows.position");
  EXPECT_DEATH(AppendRows(ops, cache, 100, 93), "check failed: end <= kv.shape.max_pages");
}

// ---- Planted faults.

enum class Fault {
  kFreesTwice,      // a live page on the free stack too
  kLeaks,           // a free page forgotten
  kSharesPage,      // one page in two lists
  kEvictsUnfreed,   // a page leaves the live range but is not freed
  kRevives,         // a freed page enters the live range again
  kSwapsHeads,      // two heads' tables exchanged
  kEvictsOneMore,   // one page freed without licence
  kOverwrites,      // a value of an old page changed
  kForgetsOwner,    // a page is shared and not counted: freed while a slot has it
  kCountsTwice,     // a page is shared once and counted twice: never free again
  kSharesUnfull,    // the page that is being filled is shared, too
  kSharesLateGate,  // the cumulative gate of the last token instead of that of the page end
  kSwapsIntoOld,    // what comes back thinks that it has a page that it had
  kSwapsDisorder    // what comes back has two of its pages exchanged
};

// A backend that goes wrong once, at the end of an eviction, a share or a swap.
class FaultyOps : public CpuOps {
 public:
  explicit FaultyOps(Fault fault) : CpuOps(OneThread()), fault_(fault) {}

  void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
             Stream stream) override {
    CpuOps::Evict(batch, params, kv, stream);
    if (++calls_ < 500 || planted_) return;
    for (int i = 0; i < batch.num_seqs && !planted_; ++i) {
      const int64_t length = kv.length[batch.slot[i]];
      planted_ = Plant(kv, batch.slot[i], PagesFor(length));
    }
  }
  void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) override {
    CpuOps::Share(from, to, kv, stream);
    if (++shares_ < 20 || planted_ || kv.length[to] == 0) return;
    const int pages = PagesFor(kv.length[to]);
    const int64_t list = kv.ListIndex(to, 0, 0), source = kv.ListIndex(from, 0, 0);
    uint64_t& owners = kv.page_owners[kv.Table(list)[pages - 1]];
    const bool unfull = kv.length[from] % kPageTokens != 0;
    if (fault_ == Fault::kForgetsOwner) {
      owners -= OwnerWord(to);
      if (NumOwners(owners) == 1) ++kv.sole_pages[SoleOwner(owners)];
    } else if (fault_ == Fault::kCountsTwice) {
      owners += OwnerWord(to);
    } else if (fault_ == Fault::kSharesUnfull && unfull) {
      for (int64_t i = 0; i < kv.shape.lists_per_slot(); ++i) {
        const int32_t page = kv.Table(source + i)[pages];
        kv.Table(list + i)[pages] = page;
        kv.page_owners[page] += OwnerWord(to);
        --kv.sole_pages[from];
      }
      kv.length[to] = kv.length[from];
    } else if (fault_ == Fault::kSharesLateGate && unfull) {
      kv.cum_log_f[kv.HeadIndex(to, 0, 0)] = kv.cum_log_f[kv.HeadIndex(from, 0, 0)];
    } else {
      return;
    }
    planted_ = true;
  }
  void SwapOut(int32_t slot, const HostSlot& to, const PagedKv& kv, Stream stream) override {
    CpuOps::SwapOut(slot, to, kv, stream);
    old_ = kv.Table(kv.ListIndex(slot, 0, 0))[PagesFor(kv.length[slot]) - 1];
  }
  void SwapIn(const HostSlot& from, int32_t slot, const PagedKv& kv, Stream stream) override {
    CpuOps::SwapIn(from, slot, kv, stream);
    if (++swaps_ < 20 || planted_) return;
    const int64_t list = kv.ListIndex(slot, 0, 0);
    const int end = PagesFor(kv.length[slot]);
    int32_t* table = kv.Table(list);
    if (fault_ == Fault::kSwapsIntoOld && table[end - 1] != old_) {
      table[end - 1] = old_;
    } else if (fault_ == Fault::kSwapsDisorder && end - kv.first_live[list] > 1) {
      std::swap(table[end - 2], table[end - 1]);
    } else {
      return;
    }
    planted_ = true;
  }
  bool planted() const { return planted_; }

 private:
  // In the slot's first list; it and its neighbour are two heads of one layer.
  bool Plant(const PagedKv& kv, int slot, int end) const {
    const int64_t list = kv.ListIndex(slot, 0, 0);
    int32_t& first = kv.first_live[list];
    int32_t* table = kv.Table(list);
    if (first == 0 || first + 2 > end) return false;
    // In pages that others have, too, the audit would see what only the model can see in these.
    for (const int64_t head : {list, list + 1}) {
      for (int p = kv.first_live[head]; p < end; ++p) {
        if (NumOwners(kv.page_owners[kv.Table(head)[p]]) > 1) return false;
      }
    }
    switch (fault_) {
      case Fault::kFreesTwice:
        kv.free_stack[(*kv.free_count)++] = table[end - 1];
        return true;
      case Fault::kLeaks:
        return --*kv.free_count >= 0;
      case Fault::kSharesPage:
        kv.Table(list + 1)[end - 1] = table[end - 1];
        return true;
      case Fault::kEvictsUnfreed:
        ++first;
        return true;
      case Fault::kRevives:
        --first;
        return true;
      case Fault::kSwapsHeads:
        for (int p = 0; p < end; ++p) std::swap(table[p], kv.Table(list + 1)[p]);
        std::swap(first, kv.first_live[list + 1]);
        return true;
      case Fault::kEvictsOneMore:
        DropPage(kv, slot, table[first++]);
        return true;
      case Fault::kOverwrites:
        static_cast<float*>(kv.values)[table[end - 2] * kv.shape.head_dim * kPageTokens] += 1;
        return true;
      default:
        return false;
    }
  }

  const Fault fault_;
  int calls_ = 0, shares_ = 0, swaps_ = 0;
  int32_t old_ = 0;  // a page of what was swapped out last
  bool planted_ = false;
};

// The error, and whether the audit alone sees it.
std::pair<std::string, bool> FindFault(Fault fault, uint64_t seed) {
  FaultyOps ops(fault);
  PoolSimulation simulation({Shape(2, 2, 2, 4, 5, 10, 100), AcpMode::kPaper, 0.8, 0.8, false, seed},
                            ops);
  std::string error;
  for (int step = 0; step < 20000 && error.empty() && !ops.planted(); ++step) {
    error = simulation.Step();
  }
  EXPECT_TRUE(ops.planted());
  if (error.empty()) error = simulation.CheckAllTags();
  return {error, !simulation.cache().Audit().ok()};
}

TEST(KvCacheTest, AuditFindsPagesInTheWrongPlace) {
  for (Fault fault : {Fault::kFreesTwice, Fault::kLeaks, Fault::kSharesPage, Fault::kEvictsUnfreed,
                      Fault::kRevives, Fault::kForgetsOwner, Fault::kCountsTwice,
                      Fault::kSharesUnfull, Fault::kSwapsIntoOld}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto [error, audit_fails] = FindFault(fault, seed);
      EXPECT_EQ(error.substr(0, 6), "audit:") << static_cast<int>(fault) << ": " << error;
      EXPECT_TRUE(audit_fails) << static_cast<int>(fault);
    }
  }
}

// Every page has one owner, but the wrong one, or too few, or holds the wrong values.
TEST(KvCacheTest, ModelAndTagsFindWhatTheAuditCannot) {
  for (Fault fault : {Fault::kSwapsHeads, Fault::kEvictsOneMore, Fault::kOverwrites,
                      Fault::kSharesLateGate, Fault::kSwapsDisorder}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto [error, audit_fails] = FindFault(fault, seed);
      EXPECT_NE(error, "") << static_cast<int>(fault);
      EXPECT_FALSE(audit_fails) << static_cast<int>(fault);
    }
  }
}

}  // namespace
}  // namespace fox::pool
