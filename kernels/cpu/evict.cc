// Evict and Release: the ways in which a slot's pages are freed. Eviction is decided at page ends
// only, in order, from the summaries there, so the set of live pages depends on the tokens alone.
// The rule: kernels/paging/acp.h; its proof, and why live pages are a range: kernels/docs/acp.md 2
// to 4.
#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_access.h"
#include "kernels/cpu/page_pool.h"
#include "kernels/paging/acp.h"

namespace fox {
namespace {

// The evicted-mass bound of the rule for page `first` at the end of page `p`, the largest over the
// group. `kv_head` counts the kv heads of all layers.
template <typename T>
double EvictedMassBound(const EvictParams& params, const PagedKv& kv, const int32_t* table,
                        int64_t kv_head, int first, int p) {
  double largest = kNoMass;
  for (int g = 0; g < kv.shape.group(); ++g) {
    const int64_t head = kv_head * kv.shape.group() + g;
    const double threshold =
        PageEndThreshold<T>(params.acp, kv, kv.SummaryIndex(table[p], g),
                            params.self_logit_bound[head], params.max_logit_bound[head]);
    const double evicted_mass = kv.log_mass_bound[kv.SummaryIndex(table[first], g)] + threshold;
    if (!(evicted_mass <= largest)) largest = evicted_mass;  // a NaN wins: keep
    if (std::isnan(largest)) break;
  }
  return largest;
}

// Frees the pages that the end of page `p` licenses in one list; returns their number.
template <typename T>
int64_t EvictList(const EvictParams& params, const PagedKv& kv, int slot, int64_t kv_head, int p,
                  double log_eps, double* largest) {
  const int64_t list = kv.ListIndex(slot, 0, 0) + kv_head;
  const int32_t* table = kv.Table(list);
  int32_t& first = kv.first_live[list];
  int64_t freed = 0;
  while (first < p) {
    const double evicted_mass = EvictedMassBound<T>(params, kv, table, kv_head, first, p);
    if (!MayDrop(evicted_mass, 0, log_eps)) break;
    kv.max_log_evicted_mass[list] = std::max(kv.max_log_evicted_mass[list], evicted_mass);
    if (largest != nullptr) *largest = std::max(*largest, evicted_mass);
    for (int g = 0; g < kv.shape.group(); ++g) {
      const int64_t head = kv_head * kv.shape.group() + g;
      kv.evicted_log_mass[kv.HeadIndex(slot, 0, 0) + head] =
          EvictedLogMass(params.acp, kv.log_mass_bound[kv.SummaryIndex(table[first], g)],
                         params.max_logit_bound[head]);
    }
    DropPage(kv, slot, table[first]);
    ++first;
    ++freed;
  }
  return freed;
}

}  // namespace

// The sequence's rows, heads and layers in order.
LostMass CpuOps::LostMassOf(const BatchView& batch, const EvictParams& params,
                            const PagedKvShape& shape, int seq) const {
  LostMass lost;
  for (int64_t row = batch.row_begin[seq]; row < batch.row_begin[seq + 1]; ++row) {
    for (int64_t head = 0; head < shape.heads_per_slot(); ++head) {
      const int64_t layer = head / shape.q_heads;
      const HeadLoss& loss = losses_[static_cast<size_t>(
          (layer * batch.num_rows + row) * shape.q_heads + head % shape.q_heads)];
      if (!(loss.log_mass > kNoMass)) continue;
      lost.Add(loss.log_mass,
               params.log_max_value == nullptr
                   ? kNoMass
                   : loss.log_mass + params.log_max_value[head] + loss.log_inverse_norm);
    }
  }
  return lost;
}

void CpuOps::Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv, Stream) {
  if (params.acp == AcpMode::kOff) return;
  for (int seq = 0; params.lost_mass != nullptr && seq < batch.num_seqs; ++seq) {
    params.lost_mass[seq] = LostMassOf(batch, params, kv.shape, seq);
  }
  FOX_CHECK(params.self_logit_bound != nullptr && params.max_logit_bound != nullptr);
  DispatchPageType(kv.shape.dtype, [&](auto wide, auto) {
    for (int seq = 0; seq < batch.num_seqs; ++seq) {
      if (!std::isfinite(batch.log_tolerance[seq])) continue;
      const int64_t begin = batch.position[seq];
      const int64_t end = begin + batch.row_begin[seq + 1] - batch.row_begin[seq];
      // Page ends among the rows: pages whose last position lies in [begin, end).
      for (int64_t p = begin / kPageTokens; p < end / kPageTokens; ++p) {
        for (int64_t head = 0; head < kv.shape.lists_per_slot(); ++head) {
          const int64_t freed = EvictList<decltype(wide)>(
              params, kv, batch.slot[seq], head, static_cast<int>(p), batch.log_tolerance[seq],
              params.max_log_evicted_mass == nullptr ? nullptr : params.max_log_evicted_mass + seq);
          if (params.pages_evicted != nullptr) params.pages_evicted[seq] += freed;
        }
      }
    }
  });
}

void CpuOps::Release(const int32_t* slots, int count, const PagedKv& kv, Stream) {
  const PagedKvShape& shape = kv.shape;
  for (int i = 0; i < count; ++i) {
    FOX_CHECK(slots[i] >= 0 && slots[i] < shape.max_slots);
    int64_t& length = kv.length[slots[i]];
    const int64_t lists = shape.lists_per_slot(), first_list = kv.ListIndex(slots[i], 0, 0);
    for (int64_t list = first_list; list < first_list + lists; ++list) {
      for (int p = kv.first_live[list]; p < PagesFor(length); ++p) {
        DropPage(kv, slots[i], kv.Table(list)[p]);
      }
      kv.first_live[list] = 0;
      kv.max_log_evicted_mass[list] = kNoMass;
    }
    length = 0;
    const int64_t state = kv.HeadIndex(slots[i], 0, 0);
    const int64_t heads = shape.heads_per_slot();
    std::fill_n(kv.cum_log_f + kv.HeadIndex(kv.After(slots[i], 0), 0, 0), heads, 0.0);
    std::fill_n(kv.evicted_log_mass + state, heads, kNoMass);
    std::fill_n(kv.log_mass + state, heads, kNoMass);
    std::fill_n(kv.decay_sum + state, heads, 0.0);
    std::fill_n(kv.key_sum + state * shape.head_dim, heads * shape.head_dim, 0.0);
  }
}

}  // namespace fox
