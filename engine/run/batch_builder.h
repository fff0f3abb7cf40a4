// BatchBuilder: a StepPlan as the arrays an operation reads. They lie at fixed places of one block
// of the backend's memory, so that a step sends one copy and a captured graph finds them again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/request/step_plan.h"
#include "kernels/interface/ops.h"

namespace fox {

// What a step reports, in the backend's memory; [max_seqs] each, in the order of the plan.
struct StepOutputs {
  // Of PagedKv, [1] each where nothing else is said: they lie here to come back with the rest.
  int32_t* free_pages = nullptr;  // free_count
  PoolFault* pool_fault = nullptr;
  int32_t* sole_pages = nullptr;  // [num_slots]
  int64_t* blocks_total = nullptr;
  int64_t* blocks_pruned = nullptr;
  int64_t* pages_evicted = nullptr;
  double* max_log_evicted_mass = nullptr;  // -infinity: nothing was evicted
  SampleRecord* sampled = nullptr;         // [max_logit_rows], by logit row
};

// Fills a batch up and touches nothing: slot -1, one token.
PlannedSequence PaddingSequence(int64_t position);

class BatchBuilder {
 public:
  // At most so many rows, sequences (padding included) and logit rows a step; `num_slots`: of
  // the cache.
  BatchBuilder(Ops& ops, int64_t max_rows, int64_t max_seqs, int64_t max_logit_rows,
               int64_t num_slots);

  // Bytes of the block that `staging` of Build must hold.
  size_t bytes() const { return block_.bytes(); }

  // Lays the plan out in `staging` (host, pinned if there is a queue) and sends it. Pads a plan of
  // single tokens to `seqs` sequences, each with a row of logits, wanted or not (0: no padding).
  // `staging` must stay as it is until the copy has happened. REQUIRES: the plan is within the
  // limits given above; its sequences of one token come first.
  void Build(const StepPlan& plan, int64_t seqs, std::byte* staging, Stream stream);

  // Of the last Build.
  const BatchView& batch() const { return batch_; }
  const int64_t* logit_rows() const { return logit_rows_; }
  const SampleRow* sample_rows() const { return sample_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }

  const StepOutputs& outputs() const { return outputs_; }
  int32_t* sampled_tokens() const { return sampled_tokens_.as<int32_t>(); }
  // The outputs in a block, or in the host copy of one, which begins at output_buffer().
  StepOutputs OutputsAt(std::byte* block) const;
  const std::byte* output_buffer() const { return block_.as<std::byte>(); }
  size_t output_bytes() const { return output_bytes_; }
  // Of the beginning of the outputs, which holds free_pages, pool_fault, sole_pages and nothing
  // else.
  size_t pool_bytes() const { return sampled_; }

 private:
  template <typename T>
  T* At(std::byte* base, size_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }

  Ops& ops_;
  int64_t max_seqs_, max_logit_rows_;
  // Byte offsets; the outputs come first, the token ids, which grow most, last.
  size_t sole_pages_ = 0, sampled_ = 0, counts_ = 0, mass_ = 0, output_bytes_ = 0;
  size_t position_ = 0, row_begin_ = 0, tolerance_ = 0, logit_row_ = 0, sample_ = 0, slot_ = 0,
         token_ = 0;
  Buffer block_, sampled_tokens_;
  StepOutputs outputs_;
  BatchView batch_;
  const int64_t* logit_rows_ = nullptr;
  const SampleRow* sample_rows_ = nullptr;
  int64_t num_logit_rows_ = 0;
};

}  // namespace fox
