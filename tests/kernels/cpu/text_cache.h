// TextCache: a paged cache of the CPU backend whose slots hold beginnings of one random text, for
// tests of what moves a sequence to another slot: Share and Swap.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/paged_kv_storage.h"

namespace fox::testing {

class TextCache {
 public:
  static constexpr int64_t kTokens = 320;
  static constexpr double kLogEps = -3;

  // Float32 or bf16 pages.
  TextCache(const PagedKvShape& shape, AcpMode acp, std::shared_ptr<MassAudit> audit = nullptr)
      : shape_(shape),
        acp_(acp),
        ops_({DType::kF32, true, 1, std::move(audit)}),
        storage_(shape, ops_),
        kv_(storage_.view()),
        columns_((shape.q_heads + 2 * shape.kv_heads) * int64_t{shape.head_dim} +
                 2 * shape.kv_heads + shape.q_heads),
        rows_(static_cast<size_t>(shape.layers * kTokens * columns_)),
        diagonal_(static_cast<size_t>(shape.q_heads * shape.head_dim), 1.0F),
        bounds_(static_cast<size_t>(shape.layers * shape.q_heads), 4.0) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : rows_) x = normal(rng);
    bound_.diagonal = diagonal_.data();
    bound_.self_logit_bound = bound_.max_logit_bound = bound_.max_norm_product = bounds_.data();
  }

  CpuOps& ops() { return ops_; }
  const PagedKv& kv() const { return kv_; }

  // Rows [from, to) of the text through a step; what attention gave in all layers.
  std::vector<float> Append(int32_t slot, int64_t from, int64_t to) {
    const int64_t count = to - from, row_begin[] = {0, count}, d = shape_.head_dim;
    const double log_eps = kLogEps;
    const BatchView batch{1, count, nullptr, &slot, row_begin, &from, &log_eps};
    ops_.BeginStep(batch, kv_, nullptr);
    AppendParams append;
    append.acp = acp_;
    append.bound = bound_;
    append.k_column = shape_.q_heads * d;
    append.v_column = append.k_column + shape_.kv_heads * d;
    const int64_t shift_column = append.v_column + shape_.kv_heads * d;
    if (shape_.k_shift) append.k_shift_column = shift_column;
    if (shape_.v_shift) append.v_shift_column = shift_column + shape_.kv_heads;
    append.fgate_column = shift_column + 2 * int64_t{shape_.kv_heads};
    const int64_t q_size = shape_.q_heads * d;
    std::vector<float> out(static_cast<size_t>(shape_.layers * count * q_size));
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const float* text = rows_.data() + (layer * kTokens + from) * columns_;
      std::vector<float> rows(text, text + count * columns_);
      append.layer = layer;
      append.projection = {rows.data(), DType::kF32, count, columns_, columns_};
      ops_.Append(batch, append, kv_, nullptr);
      AttentionParams attention;
      attention.layer = layer;
      attention.q = {rows.data(), DType::kF32, count, q_size, columns_};
      attention.out = {out.data() + layer * count * q_size, DType::kF32, count, q_size, q_size};
      attention.acp = acp_;
      attention.bound = bound_;
      ops_.Attention(batch, attention, kv_, nullptr);
    }
    EvictParams evict;
    evict.acp = acp_;
    evict.self_logit_bound = evict.max_logit_bound = bounds_.data();
    ops_.Evict(batch, evict, kv_, nullptr);
    return out;
  }

  void Release(int32_t slot) { ops_.Release(&slot, 1, kv_, nullptr); }

  // All that a sequence in the slot would read of its past: a line each, with a hash of the bits.
  std::string StateOf(int slot) const {
    std::string state;
    const int64_t lists = shape_.lists_per_slot(), heads = lists * shape_.group();
    const int64_t rows = lists * shape_.head_dim, length = kv_.length[slot];
    Add("length", kv_.length + slot, 1, &state);
    Add("cum_log_f", kv_.cum_log_f + slot * heads, heads, &state);
    Add("log_mass", kv_.log_mass + slot * heads, heads, &state);
    Add("decay_sum", kv_.decay_sum + slot * heads, heads, &state);
    const int64_t sums = heads * shape_.head_dim;
    Add("key_sum", kv_.key_sum + slot * sums, sums, &state);
    if (length > 0) AddRows("last_k", kv_.last_k, slot * rows, rows, &state);
    if (length > 0) AddRows("last_v", kv_.last_v, slot * rows, rows, &state);
    if (length >= kPageTokens) AddRows("page_end_k", kv_.page_end_k, slot * rows, rows, &state);
    if (length >= kPageTokens) AddRows("page_end_v", kv_.page_end_v, slot * rows, rows, &state);
    Add("first_live", kv_.first_live + slot * lists, lists, &state);
    Add("max_log_evicted_mass", kv_.max_log_evicted_mass + slot * lists, lists, &state);
    for (int64_t i = 0; i < lists; ++i) {
      const int64_t list = slot * lists + i;
      for (int p = kv_.first_live[list]; p < PagesFor(length); ++p) {
        const std::string name = "list " + std::to_string(i) + " page " + std::to_string(p) + " ";
        AddPage(name, kv_.Table(list)[p], length - int64_t{p} * kPageTokens, &state);
      }
    }
    return state;
  }

  // Of all lists together.
  int64_t LivePages(int slot) const {
    int64_t pages = 0;
    for (int64_t i = 0; i < shape_.lists_per_slot(); ++i) {
      pages += PagesFor(kv_.length[slot]) - kv_.first_live[kv_.ListIndex(slot, 0, 0) + i];
    }
    return pages;
  }

 private:
  template <typename T>
  static void Add(const std::string& name, const T* values, int64_t count, std::string* state) {
    const std::string_view bytes(reinterpret_cast<const char*>(values),
                                 static_cast<size_t>(count) * sizeof(T));
    *state += name + " " + std::to_string(std::hash<std::string_view>()(bytes)) + "\n";
  }
  static void AddRows(const std::string& name, const void* rows, int64_t at, int64_t count,
                      std::string* state) {
    if (rows != nullptr) Add(name, static_cast<const float*>(rows) + at, count, state);
  }

  // After its last token a page holds old contents.
  void AddPage(const std::string& name, int64_t page, int64_t tokens, std::string* state) const {
    const bool full = tokens >= kPageTokens;
    if (full) tokens = kPageTokens;
    const int64_t group = shape_.group(), d = shape_.head_dim;
    const auto element = static_cast<int64_t>(SizeOf(shape_.dtype));
    const auto* keys = static_cast<const char*>(kv_.keys) + page * kPageTokens * d * element;
    const auto* values = static_cast<const char*>(kv_.values) + page * kPageTokens * d * element;
    for (int64_t m = 0; m < d; ++m) {
      Add(name + "keys", keys + m * kPageTokens * element, tokens * element, state);
    }
    Add(name + "values", values, tokens * d * element, state);
    for (int64_t g = page * group; g < (page + 1) * group; ++g) {
      const auto* offsets = static_cast<const float*>(kv_.log_f_offset) + g * kPageTokens;
      Add(name + "log_f_offset", offsets, tokens, state);
      Add(name + "cum_log_f", kv_.page_cum_log_f + g, 1, state);
      if (!full) continue;
      Add(name + "log_mass_bound", kv_.log_mass_bound + g, 1, state);
      Add(name + "log_denominator_bound", kv_.log_denominator_bound + g, 1, state);
      Add(name + "max_key_norm", kv_.max_key_norm + g, 1, state);
    }
  }

  const PagedKvShape shape_;
  const AcpMode acp_;
  CpuOps ops_;
  PagedKvStorage storage_;
  const PagedKv& kv_;
  const int64_t columns_;
  std::vector<float> rows_;  // [layers, kTokens, columns]
  std::vector<float> diagonal_;
  std::vector<double> bounds_;
  QueryBound bound_;
};

}  // namespace fox::testing
