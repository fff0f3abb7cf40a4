// Attention over per-head pages, for prefill and decode: the rows of one 64-token block of one kv
// head share a KV loop from their own page to the left. Each row has its own left boundary (a
// binary search over the page bounds) and, under the certified bound, stops as soon as its own
// running denominator proves the rest negligible (acp.md 2d). A row's pages depend on the row
// alone.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/norm_and_gate.h"
#include "kernels/cpu/page_access.h"
#include "kernels/cpu/row_blocks.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/lost_mass.h"

namespace fox {
namespace {

void AttendPage(const PageTile<float>& tile) { SelectIsaKernels().attend_page_f32(tile); }
void AttendPage(const PageTile<double>& tile) { SelectIsaKernels().attend_page_f64(tile); }

// Keys and values of a page, widened into the layout of the inner loop. Tokens past `valid` may be
// anything and are zeroed.
template <typename T>
class WidePage {
 public:
  // The calling thread's own, with room for `head_dim`.
  static WidePage& OfThread(int head_dim) {
    static thread_local WidePage page;
    page.d_ = head_dim;
    page.padded_ = PaddedDim(head_dim);
    page.keys_.resize(static_cast<size_t>(page.d_) * kPageTokens);
    page.values_.resize(static_cast<size_t>(page.padded_) * kPageTokens);
    return page;
  }

  template <typename P>
  void Load(const PagedKv& kv, int32_t page, int valid) {
    WidenKeys<P>(kv, page, keys_.data());
    for (int m = 0; valid < kPageTokens && m < d_; ++m) {
      std::fill_n(keys_.data() + m * kPageTokens + valid, kPageTokens - valid, T(0));
    }
    WidenValues<P>(kv, page, valid, padded_, values_.data());
    for (int j = 0; padded_ > d_ && j < valid; ++j) {
      std::fill_n(values_.data() + j * padded_ + d_, padded_ - d_, T(0));
    }
    std::fill_n(values_.data() + static_cast<int64_t>(valid) * padded_,
                static_cast<int64_t>(kPageTokens - valid) * padded_, T(0));
  }
  const T* keys() const { return keys_.data(); }
  const T* values() const { return values_.data(); }

 private:
  int d_ = 0, padded_ = 0;
  std::vector<T> keys_, values_;
};

// One query head of one row.
template <typename T>
struct HeadRow {
  TileRow<T> row = {};
  int head = 0, head_in_group = 0;
  int64_t batch_row = 0;
  double c = 0;          // upper bound on the row's cumulative log gate
  int left = 0;          // pages before this one are excluded by the bound
  int last = 0;          // the page it visited last
  bool stopped = false;  // by its own certificate
};

template <typename T, typename P>
class BlockAttention {
 public:
  // `losses`: [num_rows, q_heads], of rows that lost something. `audit` may be null.
  BlockAttention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                 const RowBlock& block, int kv_head, HeadLoss* losses, MassAudit* audit)
      : params_(params),
        kv_(kv),
        losses_(losses),
        audit_(audit),
        block_(block),
        kv_head_(kv_head),
        d_(kv.shape.head_dim),
        slot_(batch.slot[block.seq]),
        list_(kv.ListIndex(slot_, params.layer, kv_head)),
        table_(kv.Table(list_)),
        page_(static_cast<int>(block.position / kPageTokens)),
        log_eps_(params.acp == AcpMode::kOff ? -std::numeric_limits<double>::infinity()
                                             : batch.log_tolerance[block.seq]),
        first_held_(FirstHeld()),
        wide_(WidePage<T>::OfThread(d_)),
        out_(static_cast<size_t>(block.count) * static_cast<size_t>(kv.shape.group()) *
             static_cast<size_t>(PaddedDim(d_))) {}

  // Returns (row, head, page) blocks in the causal range, and of those the skipped ones.
  std::pair<int64_t, int64_t> Run() {
    MakeRows();
    int leftmost = page_;
    for (const HeadRow<T>& w : rows_) leftmost = std::min(leftmost, w.left);
    std::vector<TileRow<T>*> active;
    for (int n = page_; n >= leftmost; --n) {
      active.clear();
      for (HeadRow<T>& w : rows_) {
        if (n < w.left || w.stopped || (n < page_ && CertifiedToStop(w, n))) continue;
        PointAt(w, n);
        active.push_back(&w.row);
      }
      if (active.empty()) break;
      const int valid =
          n == page_ ? static_cast<int>(block_.position % kPageTokens) + block_.count : kPageTokens;
      wide_.template Load<P>(kv_, table_[n], valid);
      const T scale = T(1) / std::sqrt(static_cast<T>(d_));
      AttendPage(PageTile<T>{d_, wide_.keys(), wide_.values(), scale,
                             static_cast<int>(active.size()), active.data()});
    }
    Store();
    if (audit_ != nullptr) Audit();
    return Count();
  }

 private:
  void MakeRows() {
    const int group = kv_.shape.group();
    rows_.resize(static_cast<size_t>(block_.count * group));
    for (int r = 0; r < block_.count; ++r) {
      const int token = static_cast<int>(block_.position % kPageTokens) + r;
      for (int g = 0; g < group; ++g) {
        HeadRow<T>& w = rows_[static_cast<size_t>(r * group + g)];
        w.batch_row = block_.first_row + r;
        w.head = kv_head_ * group + g;
        w.head_in_group = g;
        const int64_t own = kv_.SummaryIndex(table_[page_], g);
        w.row.q = params_.q.Row<const T>(w.batch_row) + static_cast<int64_t>(w.head) * d_;
        w.row.local = kv_.LogFOffsets<T>(own)[token];
        w.row.keys = token + 1;
        w.row.max = Sink(w.head);
        w.row.sum = params_.sink == nullptr ? T(0) : T(1);
        w.row.out = out_.data() + (r * group + g) * PaddedDim(d_);
        w.c = UpperCumulativeGate(kv_.page_cum_log_f[own], static_cast<double>(w.row.local));
        w.left = Boundary(w);
        w.last = page_;
      }
    }
  }

  // Minus infinity: none.
  T Sink(int head) const {
    if (params_.sink == nullptr) return -std::numeric_limits<T>::infinity();
    return static_cast<T>(params_.sink[head]);
  }

  // First page that the bound does not exclude for this row.
  int Boundary(const HeadRow<T>& w) const {
    const int low = kv_.first_live[list_];
    if (page_ == 0 || !std::isfinite(log_eps_)) return low;
    const double threshold = Threshold(w);
    return FirstKept(low, page_, [&](int page) {
      return MayDrop(LogMassBound(page, w.head_in_group), threshold, log_eps_);
    });
  }

  // The first page of [low, high) that `drops` keeps, or else the larger of both ends. The pages
  // that it drops are the first ones.
  template <typename Drops>
  static int FirstKept(int low, int high, const Drops& drops) {
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (drops(middle)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // E of a full page.
  double LogMassBound(int page, int head_in_group) const {
    return kv_.log_mass_bound[kv_.SummaryIndex(table_[page], head_in_group)];
  }

  // The first page that page ends before the rows' page leave, in this step or before (evict.cc).
  int FirstHeld() const {
    const int low = kv_.first_live[list_];
    if (!std::isfinite(log_eps_)) return low;
    return FirstKept(low, page_ - 1, [&](int page) { return IsEvicted(page); });
  }

  // By the end of the page before the rows' page.
  bool IsEvicted(int page) const {
    for (int g = 0; g < kv_.shape.group(); ++g) {
      const int head = kv_head_ * kv_.shape.group() + g;
      const double threshold = PageEndThreshold<T>(
          params_.acp, kv_, kv_.SummaryIndex(table_[page_ - 1], g),
          params_.bound.self_logit_bound[head], params_.bound.max_logit_bound[head]);
      if (!MayDrop(LogMassBound(page, g), threshold, log_eps_)) return false;
    }
    return true;
  }

  double Threshold(const HeadRow<T>& w) const {
    const int64_t before = kv_.SummaryIndex(table_[page_ - 1], w.head_in_group);
    return PageThreshold(params_.acp, kv_.log_denominator_bound[before], w.c,
                         params_.bound.self_logit_bound[w.head],
                         params_.bound.max_logit_bound[w.head]);
  }

  // The row certificate for the pages 0..n not yet visited.
  bool CertifiedToStop(HeadRow<T>& w, int n) const {
    if (params_.acp != AcpMode::kCertified || !std::isfinite(log_eps_)) return false;
    const double log_z = static_cast<double>(w.row.max) + std::log(static_cast<double>(w.row.sum));
    const double rounding =
        RowRounding(d_, MaxNormProduct(params_.bound, w.head), w.c,
                    kv_.page_cum_log_f[kv_.SummaryIndex(table_[w.last], w.head_in_group)]);
    w.stopped = MayStop(LogMassBound(n, w.head_in_group), w.c, log_z, rounding, log_eps_);
    return w.stopped;
  }

  void PointAt(HeadRow<T>& w, int n) const {
    const int g = w.head_in_group;
    const int64_t summary = kv_.SummaryIndex(table_[n], g);
    w.row.log_f_offset = kv_.LogFOffsets<T>(summary);
    w.row.page_decay = static_cast<T>(kv_.page_cum_log_f[kv_.SummaryIndex(table_[page_], g)] -
                                      kv_.page_cum_log_f[summary]);
    if (n < page_) w.row.keys = kPageTokens;
    w.last = n;
  }

  void Store() const {
    for (const HeadRow<T>& w : rows_) {
      T* out = params_.out.Row<T>(w.batch_row) + static_cast<int64_t>(w.head) * d_;
      const T scale = T(1) / w.row.sum;
      for (int m = 0; m < d_; ++m) out[m] = w.row.out[m] * scale;
      if (first_held_ > 0) LossOf(w) = {LogLostMassOf(w), LogInverseNorm(out)};
      Transform(w.batch_row, static_cast<int64_t>(w.head) * d_, out);
      if (params_.lse.empty()) continue;
      params_.lse.Row<T>(w.batch_row)[w.head] = w.row.max + std::log(w.row.sum);
    }
  }

  HeadLoss& LossOf(const HeadRow<T>& w) const {
    return losses_[w.batch_row * kv_.shape.q_heads + w.head];
  }

  double LogLostMassOf(const HeadRow<T>& w) const {
    double evicted = kv_.evicted_log_mass[kv_.HeadIndex(slot_, params_.layer, w.head)];
    if (first_held_ > kv_.first_live[list_]) {
      evicted = EvictedLogMass(params_.acp, LogMassBound(first_held_ - 1, w.head_in_group),
                               params_.bound.max_logit_bound[w.head]);
    }
    const double log_z = static_cast<double>(w.row.max) + std::log(static_cast<double>(w.row.sum));
    return LogLostMass(evicted, w.c, log_z,
                       RowRounding(d_, MaxNormProduct(params_.bound, w.head), w.c, 0), log_eps_);
  }

  // Of an output before its norm.
  double LogInverseNorm(const T* out) const {
    double square = d_ * params_.transform.eps;
    for (int m = 0; m < d_; ++m)
      square += static_cast<double>(out[m]) * static_cast<double>(out[m]);
    return -std::log(square) / 2;
  }

  // The output norm and gate of a head, whose first column is given.
  void Transform(int64_t row, int64_t column, T* out) const {
    const OutputTransform& t = params_.transform;
    if (t.norm != nullptr) NormRow(out, static_cast<const T*>(t.norm) + column, d_, t.eps, out);
    if (t.gate.empty()) return;
    GatedRow(t.gate.Row<const T>(row) + column, out, d_, t.act, out);
  }

  void Audit() const {
    for (const HeadRow<T>& w : rows_) {
      const int64_t position = block_.position + (w.batch_row - block_.first_row);
      audit_->CheckRow(kv_, list_, w.head_in_group, position, w.row.q,
                       static_cast<double>(Sink(w.head)),
                       static_cast<int64_t>(w.last) * kPageTokens, log_eps_,
                       int64_t{first_held_} * kPageTokens, LossOf(w).log_mass);
    }
  }

  std::pair<int64_t, int64_t> Count() const {
    int64_t skipped = 0;
    for (const HeadRow<T>& w : rows_) skipped += w.last;
    return {static_cast<int64_t>(rows_.size()) * (page_ + 1), skipped};
  }

  const AttentionParams& params_;
  const PagedKv& kv_;
  HeadLoss* const losses_;
  MassAudit* const audit_;
  const RowBlock& block_;
  const int kv_head_, d_, slot_;
  const int64_t list_;
  const int32_t* table_;
  const int page_;  // the rows' own page
  const double log_eps_;
  const int first_held_;
  WidePage<T>& wide_;
  std::vector<T> out_;
  std::vector<HeadRow<T>> rows_;
};

void AddTo(int64_t* counts, int seq, int64_t amount) {
  if (counts == nullptr) return;
  std::atomic_ref<int64_t>(counts[seq]).fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace

void CpuOps::Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                       Stream) {
  FOX_CHECK(params.acp == AcpMode::kOff ||
            (params.bound.self_logit_bound != nullptr && params.bound.max_logit_bound != nullptr));
  const int64_t hidden = int64_t{kv.shape.q_heads} * kv.shape.head_dim;
  FOX_CHECK(params.q.cols == hidden && params.out.cols == hidden);
  FOX_CHECK(batch.num_rows <= params.q.rows && batch.num_rows <= params.out.rows);
  FOX_CHECK(params.lse.empty() || params.lse.cols == kv.shape.q_heads);
  const std::vector<RowBlock> blocks = SplitIntoBlocks(batch);
  const int64_t heads = kv.shape.kv_heads;
  HeadLoss* const losses = losses_.data() + params.layer * batch.num_rows * kv.shape.q_heads;
  const int64_t count = static_cast<int64_t>(blocks.size()) * heads;
  DispatchPageType(kv.shape.dtype, [&](auto wide, auto page) {
    pool_.ForEach(count, true, [&](int64_t i) {
      // The last blocks see the most pages: longest first balances best.
      const RowBlock& block = blocks[static_cast<size_t>((count - 1 - i) / heads)];
      BlockAttention<decltype(wide), decltype(page)> attention(
          batch, params, kv, block, static_cast<int>(i % heads), losses, audit_.get());
      const auto [total, skipped] = attention.Run();
      AddTo(params.blocks_total, block.seq, total);
      AddTo(params.blocks_pruned, block.seq, skipped);
    });
  });
}

}  // namespace fox
