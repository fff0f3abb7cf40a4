// BeginStep allocates a step's pages. Append turns projections into queries, keys, values and gates
// and writes them after each sequence's end. As soon as a page is full, it is accumulated into the
// running sums from its stored values, in float64, so summaries depend on the tokens alone. Their
// meaning and rounding: kernels/docs/acp.md sections 2 and 3; evict.cc uses them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/norm_and_gate.h"
#include "kernels/cpu/page_access.h"
#include "kernels/cpu/page_pool.h"
#include "kernels/cpu/query_bound.h"
#include "kernels/cpu/row_blocks.h"
#include "kernels/paging/acp.h"

namespace fox {
namespace {

constexpr int kMaxHeadDim = 256;

// One sequence's share of the batch.
struct Rows {
  int slot;
  int64_t first_row;
  int64_t count;
  int64_t position;
  bool draft;
};

Rows RowsOf(const BatchView& batch, int seq) {
  const int64_t first = batch.row_begin[seq];
  return {batch.slot[seq], first, batch.row_begin[seq + 1] - first, batch.position[seq],
          batch.is_draft(seq)};
}

// The sequence's rows and the rows of the drafts behind it.
Rows RowsWithDrafts(const BatchView& batch, int seq) {
  Rows rows = RowsOf(batch, seq);
  for (++seq; seq < batch.num_seqs && batch.is_draft(seq); ++seq) ++rows.count;
  return rows;
}

template <typename T, typename P>
class Appender {
 public:
  // `audit` may be null.
  Appender(const BatchView& batch, const AppendParams& params, const PagedKv& kv, MassAudit* audit)
      : batch_(batch),
        params_(params),
        kv_(kv),
        audit_(audit),
        shape_(kv.shape),
        d_(kv.shape.head_dim),
        log_gates_(static_cast<size_t>(batch.num_rows * kv.shape.q_heads)) {
    FOX_CHECK(d_ <= kMaxHeadDim);
    if (params.rope_frequency != nullptr) MakeRotations();
  }

  // First, for each block of rows: all heads' queries, keys, values and log gates. Rows do not
  // depend on one another, and each is read from front to back.
  void Project(const RowBlock& block) {
    T key[kMaxHeadDim], value[kMaxHeadDim];
    const Rows rows = RowsOf(batch_, block.seq);
    // A page holds its keys dimension by dimension: they are turned over once all are there.
    std::vector<P> keys(static_cast<size_t>(shape_.kv_heads * block.count * d_));
    for (int i = 0; i < block.count; ++i) {
      const int64_t row = block.first_row + i, position = block.position + i;
      for (int head = 0; head < shape_.q_heads; ++head) {
        T* q = Row(row) + params_.q_column + static_cast<int64_t>(head) * d_;
        if (params_.q_norm != nullptr) Normalize(params_.q_norm, head, q);
        if (params_.q_cap != nullptr) CapNorm(q, d_, params_.q_cap[head]);
        Rotate(row, q);
        log_gates_[static_cast<size_t>(row * shape_.q_heads + head)] = LogGate(row, head);
      }
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const int64_t r = row - rows.first_row;
        Shifted(rows, r, head, params_.k_column, params_.k_shift_column, kv_.last_k, key);
        Shifted(rows, r, head, params_.v_column, params_.v_shift_column, kv_.last_v, value);
        if (params_.k_norm != nullptr) Normalize(params_.k_norm, head, key);
        if (params_.k_cap != nullptr) CapNorm(key, d_, params_.k_cap[head]);
        Rotate(row, key);
        const int32_t page = PageOf(rows.slot, head, position);
        const int token = static_cast<int>(position % kPageTokens);
        const int key_exponent = Round(key, d_, keys.data() + (head * block.count + i) * d_);
        const int value_exponent = Round(value, d_, ValuesOf<P>(kv_, page) + token * d_);
        if (kv_.exponents == nullptr) continue;
        *kv_.KeyExponent(page, token) = static_cast<int8_t>(key_exponent);
        *kv_.ValueExponent(page, token) = static_cast<int8_t>(value_exponent);
      }
    }
    for (int head = 0; head < shape_.kv_heads; ++head) {
      P* const to =
          KeysOf<P>(kv_, PageOf(rows.slot, head, block.position)) + block.position % kPageTokens;
      const P* const from = keys.data() + head * block.count * d_;
      for (int m = 0; m < d_; ++m) {
        for (int i = 0; i < block.count; ++i) to[m * kPageTokens + i] = from[i * d_ + m];
      }
    }
  }

  // Second, for each kv head of each sequence: cumulative gates and full pages, in order.
  void Accumulate(int seq, int kv_head) const {
    const Rows rows = RowsWithDrafts(batch_, seq);
    if (rows.draft) return;
    const int64_t list = kv_.ListIndex(rows.slot, params_.layer, kv_head);
    const int32_t* table = kv_.Table(list);
    for (int g = 0; g < shape_.group(); ++g) {
      const int head = kv_head * shape_.group() + g;
      // Kept here while rows come in: in the cache, neighbouring heads share a line.
      double c = CumLogF(rows, 0, head);
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t position = rows.position + r, token = position % kPageTokens;
        const int32_t page = table[position / kPageTokens];
        const int64_t summary = kv_.SummaryIndex(page, g);
        double& base = kv_.page_cum_log_f[summary];
        if (token == 0) base = c;
        c += log_gates_[static_cast<size_t>((rows.first_row + r) * shape_.q_heads + head)];
        kv_.LogFOffsets<T>(summary)[token] = static_cast<T>(c - base);
        if (audit_ != nullptr) audit_->GatesAt(kv_, list, position)[g] = c;
        if (token == kPageTokens - 1 && params_.acp != AcpMode::kOff) {
          AccumulatePage(rows.slot, kv_head, g, position, c);
        }
        if (IsKept(rows, r)) CumLogF(rows, r + 1, head) = c;
      }
    }
    KeepLastRows(rows, kv_head);
    for (int64_t r = 0; audit_ != nullptr && r < rows.count; ++r) {
      const int64_t position = rows.position + r;
      ReadKey<P>(kv_, table[position / kPageTokens], static_cast<int>(position % kPageTokens),
                 audit_->KeyAt(kv_, list, position));
    }
  }

 private:
  T* Row(int64_t row) const { return params_.projection.Row<T>(row); }
  T* LastRow(void* rows, int slot, int kv_head) const {
    return static_cast<T*>(rows) +
           (static_cast<int64_t>(slot) * shape_.layers + params_.layer) * shape_.kv_size() +
           static_cast<int64_t>(kv_head) * d_;
  }

  // True if the state after row r stays in the history.
  bool IsKept(const Rows& rows, int64_t r) const { return rows.count - r <= shape_.history; }
  // c before row r.
  double& CumLogF(const Rows& rows, int64_t r, int head) const {
    return kv_
        .cum_log_f[kv_.HeadIndex(kv_.After(rows.slot, rows.position + r), params_.layer, head)];
  }

  // alpha * previous + (1 - alpha) * current; the row before a sequence's first is zero.
  void Shifted(const Rows& rows, int64_t r, int kv_head, int64_t column, int64_t shift_column,
               void* last, T* out) const {
    const int64_t row = rows.first_row + r;
    const T* now = Row(row) + column + static_cast<int64_t>(kv_head) * d_;
    if (shift_column < 0) {
      for (int m = 0; m < d_; ++m) out[m] = now[m];
      return;
    }
    const T logit = Row(row)[shift_column + kv_head];
    const T alpha = T(1) / (T(1) + std::exp(-logit));
    const T* before = r > 0 || rows.draft
                          ? Row(row - 1) + column + static_cast<int64_t>(kv_head) * d_
                          : LastRow(last, kv_.After(rows.slot, rows.position), kv_head);
    for (int m = 0; m < d_; ++m) {
      const T previous = rows.position + r == 0 ? T(0) : before[m];
      out[m] = alpha * previous + (T(1) - alpha) * now[m];
    }
  }

  void KeepLastRows(const Rows& rows, int kv_head) const {
    for (int64_t r = rows.count - 1; r >= 0 && IsKept(rows, r); --r) {
      const int at = kv_.After(rows.slot, rows.position + r + 1);
      KeepRow(rows, r, kv_head, at, kv_.last_k, kv_.last_v);
    }
    const int64_t page_end = (rows.position + rows.count) / kPageTokens * kPageTokens;
    if (page_end <= rows.position) return;
    const int64_t last = page_end - 1 - rows.position;
    KeepRow(rows, last, kv_head, rows.slot, kv_.page_end_k, kv_.page_end_v);
  }

  void KeepRow(const Rows& rows, int64_t r, int kv_head, int slot, void* keys, void* values) const {
    const T* row = Row(rows.first_row + r) + static_cast<int64_t>(kv_head) * d_;
    if (params_.k_shift_column >= 0) {
      std::copy_n(row + params_.k_column, d_, LastRow(keys, slot, kv_head));
    }
    if (params_.v_shift_column >= 0) {
      std::copy_n(row + params_.v_column, d_, LastRow(values, slot, kv_head));
    }
  }

  // RMS over head_dim, then the head's weights.
  void Normalize(const void* weights, int head, T* x) const {
    const T* weight = static_cast<const T*>(weights) + static_cast<int64_t>(head) * d_;
    NormRow(x, weight, d_, params_.qk_norm_eps, x);
  }

  // cos and sin of every row's angles times the attention factor, once for all heads.
  void MakeRotations() {
    const int half = d_ / 2;
    rotations_.resize(static_cast<size_t>(batch_.num_rows * d_));
    for (int seq = 0; seq < batch_.num_seqs; ++seq) {
      const Rows rows = RowsOf(batch_, seq);
      for (int64_t r = 0; r < rows.count; ++r) {
        T* out = rotations_.data() + (rows.first_row + r) * d_;
        for (int m = 0; m < half; ++m) {
          const double angle = static_cast<double>(rows.position + r) * params_.rope_frequency[m];
          out[m] = static_cast<T>(params_.attention_factor * std::cos(angle));
          out[half + m] = static_cast<T>(params_.attention_factor * std::sin(angle));
        }
      }
    }
  }

  // Rotates halves (GPT-NeoX): (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
  void Rotate(int64_t row, T* x) const {
    if (rotations_.empty()) return;
    const int half = d_ / 2;
    const T* cos = rotations_.data() + row * d_;
    const T* sin = cos + half;
    for (int m = 0; m < half; ++m) {
      const T low = x[m], high = x[half + m];
      x[m] = low * cos[m] - high * sin[m];
      x[half + m] = high * cos[m] + low * sin[m];
    }
  }

  int32_t PageOf(int slot, int kv_head, int64_t position) const {
    return kv_.Table(kv_.ListIndex(slot, params_.layer, kv_head))[position / kPageTokens];
  }

  double LogGate(int64_t row, int head) const {
    if (!params_.has_gate) return 0;
    double logit = 0;
    if (params_.fgate_column >= 0)
      logit += static_cast<double>(Row(row)[params_.fgate_column + head]);
    if (params_.fgate_bias != nullptr) {
      logit += static_cast<double>(static_cast<const T*>(params_.fgate_bias)[head]);
    }
    return LogForgetGate(logit, params_.min_log_gate);
  }

  // Accumulates the full page that ends at `end` into S, N and log M and writes E and H.
  void AccumulatePage(int slot, int kv_head, int g, int64_t end, double c_end) const {
    const int head = kv_head * shape_.group() + g;
    const int64_t state = kv_.HeadIndex(slot, params_.layer, head);
    const int32_t* table = kv_.Table(kv_.ListIndex(slot, params_.layer, kv_head));
    const int64_t p = end / kPageTokens;
    const int64_t summary = kv_.SummaryIndex(table[p], g);
    const T* local = kv_.LogFOffsets<T>(summary);
    const double page_decay = c_end - kv_.page_cum_log_f[summary];
    double* key_sum = kv_.key_sum + state * d_;
    const double keep = std::exp(page_decay);
    double decay_sum = kv_.decay_sum[state] * keep;
    for (int m = 0; m < d_; ++m) key_sum[m] *= keep;
    T keys[kMaxHeadDim * kPageTokens];  // [head_dim, 64]
    WidenKeys<P>(kv_, table[p], keys);
    double weight[kPageTokens], log_term[kPageTokens];
    EvaluateBounds(params_.bound, head, d_, keys, kPageTokens, 1, log_term);
    const double rounding = OffsetRounding(static_cast<double>(local[kPageTokens - 1]));
    for (int j = 0; j < kPageTokens; ++j) {
      const double decay = page_decay - static_cast<double>(local[j]);
      weight[j] = std::exp(decay - rounding);
      decay_sum += weight[j];
      log_term[j] += decay + rounding;
    }
    for (int m = 0; m < d_; ++m) {
      const T* row = keys + m * kPageTokens;
      double part[8] = {};  // independent sums, because one sum would wait for each addition
      for (int j = 0; j < kPageTokens; j += 8) {
        for (int i = 0; i < 8; ++i) part[i] += weight[j + i] * static_cast<double>(row[j + i]);
      }
      for (double x : part) key_sum[m] += x;
    }
    const int64_t last = p == 0 ? -1 : kv_.SummaryIndex(table[p - 1], g);  // of the page before
    const double log_mass =
        LogAddExp(kv_.log_mass[state] + page_decay, LogSumExp(log_term, kPageTokens));
    kv_.decay_sum[state] = decay_sum;
    kv_.log_mass[state] = log_mass;
    const double mass_before = p == 0 ? kNoMass : kv_.log_mass_bound[last];
    if (params_.acp == AcpMode::kPaper) {  // its bound ignores keys, but a NaN must keep its page
      const double bound = PaperLogMassBound(static_cast<double>(end), c_end);
      kv_.log_mass_bound[summary] =
          std::isnan(log_mass) ? log_mass : RisingLogMassBound(mass_before, bound);
      return;
    }
    const double bound = CertifiedLogMassBound(log_mass, static_cast<double>(end), c_end,
                                               params_.bound.max_logit_bound[head]);
    kv_.log_mass_bound[summary] = RisingLogMassBound(mass_before, bound);
    const double before =
        p == 0 ? std::numeric_limits<double>::infinity() : kv_.log_denominator_bound[last];
    kv_.log_denominator_bound[summary] =
        LogDenominatorBound(before, c_end, KeySumBound(head, decay_sum, key_sum), decay_sum);
  }

  // a(-N / S) plus the rounding of N (acp.md 2c).
  double KeySumBound(int head, double decay_sum, const double* key_sum) const {
    std::vector<double> mean(static_cast<size_t>(d_));
    for (int m = 0; m < d_; ++m) mean[static_cast<size_t>(m)] = key_sum[m] / decay_sum;
    // Keys may cancel in N, so its rounding is relative to the keys and not to the sum.
    const double rounding = kSumRounding * MaxNormProduct(params_.bound, head);
    return EvaluateBound(params_.bound, head, d_, mean.data(), -1) + rounding;
  }

  const BatchView& batch_;
  const AppendParams& params_;
  const PagedKv& kv_;
  MassAudit* const audit_;
  const PagedKvShape& shape_;
  const int d_;
  std::vector<T> rotations_;       // [num_rows, head_dim]: cosines, then sines
  std::vector<double> log_gates_;  // [num_rows, q_heads]
};

}  // namespace

// Allocates pages from the free stack for the rows' positions in every list.
void CpuOps::BeginStep(const BatchView& batch, const PagedKv& kv, Stream) {
  FOX_CHECK(batch.num_seqs == 0 || batch.row_begin[batch.num_seqs] == batch.num_rows);
  for (int seq = 0; seq < batch.num_seqs; ++seq) {
    const Rows rows = RowsOf(batch, seq);
    FOX_CHECK(rows.slot >= 0 && rows.slot < kv.shape.max_slots && rows.count >= 0);
    const int64_t drafts = rows.position - kv.length[rows.slot];  // that were right
    FOX_CHECK(drafts >= 0 && drafts < kv.shape.history);
    const int end = PagesFor(rows.position + rows.count);
    FOX_CHECK(end <= kv.shape.max_pages);
    for (int64_t list = 0; list < kv.shape.lists_per_slot(); ++list) {
      int32_t* table = kv.Table(kv.ListIndex(rows.slot, 0, 0) + list);
      for (int p = PagesFor(rows.position); p < end; ++p) {
        table[p] = TakePage(kv, rows.slot);
      }
    }
    if (!rows.draft) kv.length[rows.slot] = rows.position + rows.count;
  }
  losses_.assign(static_cast<size_t>(batch.num_rows * kv.shape.heads_per_slot()), {});
  if (audit_ != nullptr) audit_->BeginStep(batch, kv);
}

void CpuOps::Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv, Stream) {
  // Without a bound on its keys' logits, `certified` would take them for 0.
  const QueryBound& bound = params.bound;
  FOX_CHECK(params.acp != AcpMode::kCertified || bound.diagonal != nullptr ||
            bound.dense != nullptr || bound.absolute != nullptr);
  const int64_t hidden = int64_t{kv.shape.q_heads} * kv.shape.head_dim;
  const MatrixView& projection = params.projection;
  FOX_CHECK(batch.num_rows <= projection.rows);
  FOX_CHECK(params.q_column + hidden <= projection.cols &&
            params.k_column + kv.shape.kv_size() <= projection.cols &&
            params.v_column + kv.shape.kv_size() <= projection.cols);
  FOX_CHECK(params.rope_frequency == nullptr || kv.shape.head_dim % 2 == 0);
  DispatchPageType(kv.shape.dtype, [&](auto wide, auto page) {
    Appender<decltype(wide), decltype(page)> appender(batch, params, kv, audit_.get());
    const bool parallel = batch.num_rows * kv.shape.q_heads > 64;
    const std::vector<RowBlock> blocks = SplitIntoBlocks(batch);
    pool_.ForEach(static_cast<int64_t>(blocks.size()), parallel,
                  [&](int64_t i) { appender.Project(blocks[static_cast<size_t>(i)]); });
    const int64_t heads = kv.shape.kv_heads;
    pool_.ForEach(batch.num_seqs * heads, parallel, [&](int64_t i) {
      appender.Accumulate(static_cast<int>(i / heads), static_cast<int>(i % heads));
    });
  });
}

}  // namespace fox
