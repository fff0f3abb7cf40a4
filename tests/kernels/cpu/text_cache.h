// TextCache: a paged cache of the CPU backend whose slots hold beginnings of one random text, for
// tests of what moves a sequence to another slot: Share and Swap.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/paged_kv_storage.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {

class TextCache {
 public:
  static constexpr int64_t kTokens = 320;
  static constexpr double kLogEps = -3;

  // Float32 or bf16 pages.
  TextCache(const PagedKvShape& shape, AcpMode acp, std::shared_ptr<MassAudit> audit = nullptr)
      : shape_(shape),
        ops_({DType::kF32, true, 1, std::move(audit)}),
        storage_(shape, ops_),
        kv_(storage_.view()),
        text_(RandomInputs({.q_heads = shape.q_heads,
                            .kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .k_shift = shape.k_shift,
                            .v_shift = shape.v_shift,
                            .qk_norm = false},
                           kTokens, 1, {0})),
        diagonal_(static_cast<size_t>(shape.q_heads * shape.head_dim), 1.0F),
        bounds_(static_cast<size_t>(shape.layers * shape.q_heads), 4.0) {
    QueryBound bound;
    bound.diagonal = diagonal_.data();
    bound.self_logit_bound = bound.max_logit_bound = bound.max_norm_product = bounds_.data();
    run_.emplace(ops_, kv_, text_, RunOptions{.dtype = shape.dtype, .acp = acp, .bound = &bound});
  }

  CpuOps& ops() { return ops_; }
  const PagedKv& kv() const { return kv_; }

  // Rows [from, to) of the text through a step; what attention gave in all layers.
  std::vector<double> Append(int32_t slot, int64_t from, int64_t to) {
    const auto rows = text_.projection.begin();
    return run_
        ->Step({{slot, from, to - from, kLogEps}},
               {rows + from * text_.columns(), rows + to * text_.columns()})
        .out;
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
  CpuOps ops_;
  PagedKvStorage storage_;
  const PagedKv& kv_;
  const HeadInputs text_;
  const std::vector<float> diagonal_;
  const std::vector<double> bounds_;
  std::optional<HeadRun> run_;
};

}  // namespace fox::testing
