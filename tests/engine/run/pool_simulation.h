// PoolSimulation: random appends, attention, evictions, shares, swaps and releases on a real paged
// KV cache, beside an independent model of what it must hold. Each key and value is a function of
// its sequence, layer, head and position, so every page tells whose it is, and a sequence that goes
// on from another's pages writes other values behind them; live ranges are predicted from the gates
// and keys, token by token in float64, with the formulas of acp.h and none of its code.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/run/kv_cache.h"

namespace fox::pool {

struct PoolConfig {
  PagedKvShape shape;  // float32 pages, no token shift
  AcpMode acp = AcpMode::kPaper;
  double max_logit_bound = 1;   // U
  double self_logit_bound = 1;  // B
  bool constant_gates = false;
  uint64_t seed = 1;
};

struct PoolCounts {
  int64_t steps = 0;
  int64_t appends = 0;       // of one sequence in one layer
  int64_t evictions = 0;     // decided for one sequence in one layer
  int64_t releases = 0;      // of one slot
  int64_t shares = 0;        // of one slot with another
  int64_t swaps = 0;         // of one slot, in
  int64_t shared_pages = 0;  // that several slots had at once, summed over all checks
  int64_t pages_evicted = 0;
  int64_t audits = 0;
  int64_t tags_read = 0;
  int64_t ties = 0;  // decisions too close to predict, taken over from the cache
  int64_t operations() const { return appends + evictions + releases + shares + swaps; }
};

class PoolSimulation {
 public:
  PoolSimulation(const PoolConfig& config, Ops& ops);

  // One engine step: perhaps a release, a share or a swap, then a ragged batch through every layer.
  // Empty, or what is wrong; the first finding ends it.
  std::string Step();
  // Reads every live position and every page summary back.
  std::string CheckAllTags();

  KvCache& cache() { return cache_; }
  const PoolCounts& counts() const { return counts_; }

 private:
  // Sums over the keys of one query head, as of its last token; and what was kept of page ends.
  struct Head {
    double c = 0;
    double log_mass = 0;
    double decay_sum = 0;
    std::vector<double> key_sum;
    std::vector<double> c_end, log_mass_bound, log_denominator_bound;  // c, E and H by full page
    // Of the last page end.
    double end_log_mass = 0, end_decay_sum = 0;
    std::vector<double> end_key_sum;
  };
  struct Layer {
    std::vector<Head> heads;     // [q_heads]
    std::vector<int32_t> first;  // [kv_heads]
  };
  // Whose values the positions up to `end` hold.
  struct Origin {
    int64_t end;
    uint64_t generation;
  };
  struct Sequence {
    uint64_t generation = 0;
    std::vector<Origin> shared;  // what was there before its own, the first position first
    Origin copied = {0, 0};      // pages that SwapIn took: up to `end`, under a name of their own
    float family = 0;            // the same for all that go back to one beginning
    double log_eps = 0;
    double largest_side = 0;
    int64_t length = 0;
    std::vector<Layer> layers;
  };
  struct Batch {
    std::vector<int32_t> slots;
    std::vector<int64_t> row_begin, position;
    std::vector<double> log_eps;
    BatchView view() const;
  };

  // The cache rounds gates to float32, 2^-24 of at most 64 * 128 in a page; what is closer to the
  // threshold than this may go either way.
  static constexpr double kTie = 1e-3;

  uint64_t Random(uint64_t limit) { return rng_() % limit; }
  void Reset(Sequence& sequence);
  std::string ReleaseSome();
  std::string ShareSome();
  std::string SwapSome();
  std::string SwapOut(size_t slot);
  std::string SwapIn(size_t slot);
  std::string Release(const std::vector<int32_t>& slots);
  std::vector<int64_t> ChooseRows();
  bool MakeRoom(std::vector<int64_t>& rows, std::string& error);
  Batch MakeBatch(const std::vector<int64_t>& rows);
  std::string Begin(const Batch& batch);
  std::string RunLayer(const Batch& batch, int layer);
  std::string Evict(const Batch& batch);
  void FillProjection(const Batch& batch, int layer);
  std::string Attend(const Batch& batch, int layer);

  static uint64_t GenerationAt(const Sequence& sequence, int64_t position);
  float KeyElement(uint64_t generation, int layer, int head, int64_t position, int m) const;
  float ValueElement(const Sequence& sequence, int layer, int head, int64_t position, int m) const;
  float GateLogit(uint64_t generation, int layer, int head, int64_t position) const;
  void AdvanceModel(int slot, int layer, int64_t count);
  void AdvanceHead(uint64_t generation, int layer, int head, int64_t position, Head& h) const;
  void PredictEviction(int slot, int layer, int64_t begin, int64_t end);
  void PredictList(int slot, int layer, int kv_head, int page);
  double Side(const Layer& state, int kv_head, int first, int page) const;

  std::string Check();
  std::string CheckOwners();
  std::string CheckLists(int slot);
  std::string CheckSomeTags(const Batch& batch, int layer);
  std::string CheckSummaries(int slot, int layer, int head);
  std::string CheckTag(int slot, int layer, int head, int64_t position);
  std::string CheckCounts();
  uint64_t PageName(const Sequence& sequence, int list, int page) const;

  PoolConfig config_;
  PagedKvShape shape_;
  Ops& ops_;
  KvCache cache_;
  std::mt19937_64 rng_;
  uint64_t next_generation_ = 1;
  std::vector<Sequence> slots_;
  struct Swapped {
    Sequence sequence;
    std::vector<std::byte> range;
    int64_t pages;
  };
  std::vector<Swapped> swapped_;
  std::vector<float> diagonal_;
  std::vector<double> self_logit_bound_, max_logit_bound_, max_norm_product_;  // [layers, q_heads]
  QueryBound bound_;
  std::vector<float> projection_, out_;
  std::vector<uint64_t> owners_, names_;
  PoolCounts counts_;
};

}  // namespace fox::pool
