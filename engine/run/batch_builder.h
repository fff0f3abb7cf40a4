// BatchBuilder: turns a StepPlan into the arrays that operations read. The arrays lie at fixed
// places of one block of the backend's memory, so that a step sends one copy and a captured graph
// finds them again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/request/step_plan.h"
#include "kernels/interface/ops.h"

namespace fox {

// The outputs of a step, in the backend's memory. Arrays are [max_seqs], in the order of the plan,
// if nothing else is said.
struct StepOutputs {
  // Fields of PagedKv. They lie here so that they come back with the rest.
  int32_t* free_pages = nullptr;    // [1], PagedKv::free_count
  PoolFault* pool_fault = nullptr;  // [1]
  int32_t* sole_pages = nullptr;    // [num_slots]
  int64_t* blocks_total = nullptr;
  int64_t* blocks_pruned = nullptr;
  int64_t* pages_evicted = nullptr;
  double* max_log_evicted_mass = nullptr;  // -infinity: nothing was evicted
  LostMass* lost_mass = nullptr;
  SampleRecord* sampled = nullptr;  // [max_logit_rows], by logit row
};

// A sequence that pads a batch and touches no slot: slot -1, one token.
PlannedSequence PaddingSequence(int64_t position);

class BatchBuilder {
 public:
  // `max_rows`, `max_seqs` (with padding), `max_logit_rows`: limits of a step; `num_slots`: slots
  // of the cache.
  BatchBuilder(Ops& ops, int64_t max_rows, int64_t max_seqs, int64_t max_logit_rows,
               int64_t num_slots);

  // Bytes of the block that `staging` of Build must hold.
  size_t bytes() const { return block_.bytes(); }

  // Writes the plan's arrays to `staging` (host memory, pinned if there is a queue) and sends them.
  // `seqs` > 0: the plan has single tokens only and is padded to `seqs` sequences, each with a row
  // of logits. `staging` must not change until the copy has happened. REQUIRES: the plan is within
  // the limits of the constructor; its sequences with one token come first.
  void Build(const StepPlan& plan, int64_t seqs, std::byte* staging, Stream stream);

  // Results of the last Build.
  const BatchView& batch() const { return batch_; }
  const int64_t* logit_rows() const { return logit_rows_; }
  const SampleRow* sample_rows() const { return sample_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }
  // Rows of the batch that are scored, and how. A single one is there twice, because a product of
  // prefill rows has at least two.
  const int64_t* scored_rows() const { return scored_rows_; }
  const ScoreRow* score_rows() const { return score_rows_; }
  int64_t num_scored_rows() const { return num_scored_rows_; }

  const StepOutputs& outputs() const { return outputs_; }
  int32_t* sampled_tokens() const { return sampled_tokens_.as<int32_t>(); }
  // Records of the scored rows, [max_rows + 1], in the backend's memory.
  SampleRecord* scores() const { return scores_.as<SampleRecord>(); }
  // The outputs within a block, or within a host copy that begins at output_buffer().
  StepOutputs OutputsAt(std::byte* block) const;
  const std::byte* output_buffer() const { return block_.as<std::byte>(); }
  size_t output_bytes() const { return output_bytes_; }
  // Bytes of the first part of the outputs: free_pages, pool_fault and sole_pages.
  size_t pool_bytes() const { return sampled_; }

 private:
  template <typename T>
  T* At(std::byte* base, size_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }

  Ops& ops_;
  int64_t max_seqs_, max_logit_rows_;
  void PlaceScores(const PlannedSequence& seq, int64_t first_row, std::byte* staging);

  // Byte offsets. The outputs come first; the token ids, the longest array that every step has,
  // come before the arrays of scored rows.
  size_t sole_pages_ = 0, sampled_ = 0, counts_ = 0, mass_ = 0, lost_mass_ = 0, output_bytes_ = 0;
  size_t position_ = 0, row_begin_ = 0, tolerance_ = 0, logit_row_ = 0, sample_ = 0, slot_ = 0,
         token_ = 0, scored_row_ = 0, score_ = 0;
  int64_t max_scored_rows_;  // with a repeated one
  Buffer block_, sampled_tokens_, scores_;
  StepOutputs outputs_;
  BatchView batch_;
  const int64_t* logit_rows_ = nullptr;
  const SampleRow* sample_rows_ = nullptr;
  int64_t num_logit_rows_ = 0;
  const int64_t* scored_rows_ = nullptr;
  const ScoreRow* score_rows_ = nullptr;
  int64_t num_scored_rows_ = 0;
};

}  // namespace fox
