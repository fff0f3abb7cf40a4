// StepReadback: the host's side of one submitted plan. It owns the host memory of the inputs and
// outputs, copies the outputs back, and makes the StepResult. Reused from plan to plan.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/request/step_executor.h"
#include "engine/run/batch_builder.h"
#include "kernels/interface/ops.h"

namespace fox {

// Call in this order: Begin, Entries and staging, Enqueue, Wait, Deliver. Only the thread that
// calls the Ops may call.
class StepReadback {
 public:
  // `ops` and `batch` must outlive this. Memory is pinned if the backend has a queue.
  StepReadback(Ops& ops, const BatchBuilder& batch);

  // Remembers the parts of `plan` that Deliver needs. `row_each`: the batch has a row of logits for
  // each sequence, even if the plan asks for none.
  void Begin(const StepPlan& plan, bool row_each = false);

  // Host memory for the batch (BatchBuilder::Build), penalty entries and words of masks, from which
  // the backend copies.
  std::byte* staging() const { return staging_.as<std::byte>(); }
  PenaltyEntry* Entries(size_t count) { return Room<PenaltyEntry>(count, &entries_); }
  uint32_t* Masks(size_t words) { return Room<uint32_t>(words, &masks_); }

  // Enqueues the copies of the step's outputs: counters and tokens, those rows of `logits` from
  // which the host samples or scores, and the first pages of `kv` if the plan asks for windows.
  void Enqueue(const MatrixView& logits, const PagedKv& kv);
  // Returns when all work enqueued before the last Enqueue or Mark is done.
  void Wait();
  // Marks a point for Wait without copies.
  void Mark();

  // The step's result, whose logits live until the next Begin. Updates `slots`, the counters of
  // every slot since its last release. REQUIRES: Wait.
  StepResult Deliver(const ExecutorLimits& limits, std::vector<AcpStats>* slots);
  // The fault of the pool in this step or before. REQUIRES: Wait.
  PoolFault pool_fault() const { return *batch_.OutputsAt(outputs_.as<std::byte>()).pool_fault; }

 private:
  struct Awaited {
    int32_t slot;
    int64_t rows;      // rows of logits that the plan asks for
    int64_t scores;    // rows that are scored
    bool padding_row;  // the batch has a row though the plan asks for none
    bool sampled;      // on the device
    int32_t logprobs;
    int64_t end;  // tokens afterwards

    int64_t rows_in_batch() const { return rows + (padding_row ? 1 : 0); }
    int64_t rows_for_host() const { return sampled ? 0 : rows; }
  };

  Buffer Allocate(size_t bytes) const;
  template <typename T>
  T* Room(size_t count, Buffer* buffer) const {
    // Pinned allocations are slow: grow to powers of two.
    constexpr size_t kMinCount = 4096;
    const size_t bytes = std::bit_ceil(std::max(count, kMinCount) * sizeof(T));
    if (buffer->bytes() < bytes) *buffer = Allocate(bytes);
    return buffer->as<T>();
  }
  void Fetch(const void* device, size_t bytes, void* host);
  void FetchLogits(const MatrixView& logits);
  const float* Logits();

  Ops& ops_;
  const BatchBuilder& batch_;
  DeviceQueue* const queue_;  // null: calls return when their work is done
  StepPlan moves_;            // the fields that MoveSlots reads
  std::vector<Awaited> sequences_;
  bool wants_windows_ = false;
  Buffer staging_, entries_, masks_, outputs_;
  int64_t scored_rows_ = 0;       // of all sequences
  Buffer scores_;                 // [scored_rows_] records
  Buffer first_pages_;            // [slots, lists], once a plan asked for windows
  Buffer logits_;                 // the rows for the host, one after the other
  MatrixView logits_view_;        // of them; no rows: the plan needs none
  std::vector<float> float32_;    // float64 logits, rounded
  std::unique_ptr<Event> event_;  // null without a queue
};

}  // namespace fox
