// TextCache: a paged cache of the CPU backend whose slots hold beginnings of one random text, for
// tests of Share, SaveSlot and LoadSlot.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/interface/paged_kv_storage.h"
#include "tests/kernels/head_sequence.h"
#include "tests/kernels/slot_contents.h"

namespace fox::testing {

class TextCache {
 public:
  static constexpr int64_t kTokens = 320;
  static constexpr double kLogEps = -3;

  // Pages in float32, bf16 or 8 bits.
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

  // Runs rows [from, to) of the text through a step; returns the outputs of attention in all
  // layers.
  std::vector<double> Append(int32_t slot, int64_t from, int64_t to) {
    const auto rows = text_.projection.begin();
    return run_
        ->Step({{slot, from, to - from, kLogEps}},
               {rows + from * text_.columns(), rows + to * text_.columns()})
        .out;
  }

  void Release(int32_t slot) { ops_.Release(&slot, 1, kv_, nullptr); }

  Contents StateOf(int slot) const {
    return SlotContents(kv_, slot, true, [](void* to, const void* from, size_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }

  // Live pages of all lists together.
  int64_t LivePages(int slot) const {
    int64_t pages = 0;
    for (int64_t i = 0; i < shape_.lists_per_slot(); ++i) {
      pages += PagesFor(kv_.length[slot]) - kv_.first_live[kv_.ListIndex(slot, 0, 0) + i];
    }
    return pages;
  }

 private:
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
