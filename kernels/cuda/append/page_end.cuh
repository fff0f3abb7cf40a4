// A page that a decode row has filled becomes a part of the running sums, as in AccumulatePage of
// kernels/cpu/append.cc; by a warp. Evict calls it at the step's end, for all layers at once,
// instead of AppendDecode, for which attention waits: nothing before Evict reads these sums, and a
// page takes a warp as long as a layer's attention of a few rows takes.
#pragma once

#include "kernels/cuda/append/page_sums.cuh"
#include "kernels/paging/acp.h"

namespace fox::cuda {

// A page that a decode row has filled, and one of the query heads that read it.
struct FilledPage {
  __device__ FilledPage(const PagedKv& kv, int of_slot, int of_layer, int q_head, int64_t last_row)
      : slot(of_slot),
        layer(of_layer),
        head(q_head),
        group(kv.shape.group()),
        last(last_row),
        page(kv.Table(List(kv))[last_row / kPageTokens]) {}

  __device__ int64_t List(const PagedKv& kv) const {
    return kv.ListIndex(slot, layer, head / group);
  }
  __device__ int64_t Summary() const { return static_cast<int64_t>(page) * group + head % group; }

  const int slot, layer;
  const int head;      // query head
  const int group;     // query heads of its kv head
  const int64_t last;  // position of its last row
  const int32_t page;  // id
};

// A warp's shared memory for accumulating a page.
template <int kHeadDim>
struct PageSumsScratch {
  float decay[kPageTokens], term[kPageTokens];
  double keys[kHeadDim];            // N of the page
  alignas(16) float sum[kHeadDim];  // N of all keys
};

// Sums over the page's own keys, relative to its end.
struct PageSums {
  double count, log_mass;
};

// Sums the page; N goes to space.keys. By the whole warp, when the space is no longer read.
template <int kHeadDim, bool kGeneralBound, typename Part>
__device__ __forceinline__ PageSums SumPage(const HeadBound<kHeadDim, kGeneralBound>& bound,
                                            const PagedKv& kv, int32_t page, const float* local,
                                            double page_decay, PageSumsScratch<kHeadDim>& space) {
  for (int j = Lane(); j < kPageTokens; j += kWarp) {
    space.decay[j] = static_cast<float>(page_decay - static_cast<double>(local[j]));
  }
  __syncwarp();
  const PageKeys<kHeadDim, Part> keys(kv, page);
  double count = 0;
#pragma unroll 1
  for (int first = 0; first < kPageTokens; first += kPortionKeys) {
    const KeySums sums = SumKeys(bound, keys, space.decay, first, space.term);
    count += static_cast<double>(sums.count);
    if (Lane() >= kRowLanes<kHeadDim>) continue;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      double& sum = space.keys[Lane() * kVec8 + i];
      sum = (first == 0 ? 0 : sum) + static_cast<double>(sums.keys.x[i]);
    }
  }
  __syncwarp();
  return {count, LogSumExpOfPage(space.term)};
}

// Accumulates the page into the state of its query head. By the whole warp.
template <int kHeadDim, bool kGeneralBound, typename Part>
__device__ __forceinline__ void AccumulatePage(const QueryBound& query_bound, AcpMode acp,
                                               const PagedKv& kv, const FilledPage& filled,
                                               PageSumsScratch<kHeadDim>& space) {
  const int sub = Lane() % kRowLanes<kHeadDim>;
  const int64_t state = kv.HeadIndex(filled.slot, filled.layer, filled.head);
  const double c_end =
      kv.cum_log_f[kv.HeadIndex(kv.After(filled.slot, filled.last + 1), filled.layer, filled.head)];
  const double page_decay = c_end - kv.page_cum_log_f[filled.Summary()];
  const double paid = OffsetRounding(page_decay);
  const HeadBound<kHeadDim, kGeneralBound> bound(query_bound, filled.head, sub);
  __syncwarp();
  const PageSums page = SumPage<kHeadDim, kGeneralBound, Part>(
      bound, kv, filled.page, kv.LogFOffsets<float>(filled.Summary()), page_decay, space);

  const double decay_factor = exp(page_decay), weight = exp(-paid);
  const double decay_sum = fma(kv.decay_sum[state], decay_factor, __dmul_rn(page.count, weight));
  double* key_sum = kv.key_sum + state * kHeadDim;
  for (int m = Lane(); m < kHeadDim; m += kWarp) {
    const double sum = fma(key_sum[m], decay_factor, __dmul_rn(space.keys[m], weight));
    key_sum[m] = sum;
    space.sum[m] = static_cast<float>(sum);
  }
  __syncwarp();
  const float sum_bound = bound(LoadVec8(space.sum + sub * kVec8), -1.0f);
  if (Lane() != 0) return;
  PageBounds before = PageBounds::OfNone();
  if (filled.last >= kPageTokens) {
    const int64_t page_before = kv.Table(filled.List(kv))[filled.last / kPageTokens - 1];
    before = BoundsAt(kv, acp, page_before * filled.group + filled.head % filled.group);
  }
  const double log_mass = LogAddExp(kv.log_mass[state] + page_decay, page.log_mass + paid);
  kv.decay_sum[state] = decay_sum;
  kv.log_mass[state] = log_mass;
  StoreBounds(kv, acp, filled.Summary(),
              BoundPage(query_bound, acp, filled.head, filled.last, c_end, log_mass, decay_sum,
                        [=] { return sum_bound; }),
              before);
}

}  // namespace fox::cuda
