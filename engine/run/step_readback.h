// StepReadback: the host's side of one submitted plan: memory for what goes to the backend and for
// what comes back, and the StepResult made of it. Reused from plan to plan.
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

// In this order: Begin, entries and staging, Enqueue, Wait, Deliver. One thread calls, the one
// that calls the Ops.
class StepReadback {
 public:
  // Both must outlive this. Memory is pinned where the backend has a queue.
  StepReadback(Ops& ops, const BatchBuilder& batch);

  // Keeps what the results of `plan` are made with. `row_each`: it is built with a row of logits
  // for each sequence, wanted or not.
  void Begin(const StepPlan& plan, bool row_each = false);

  // Host memory of the batch on its way there (BatchBuilder::Build).
  std::byte* staging() const { return staging_.as<std::byte>(); }
  // Room for `count` penalty entries, and for words of masks, on their way there.
  PenaltyEntry* Entries(size_t count) { return Room<PenaltyEntry>(count, &entries_); }
  uint32_t* Masks(size_t words) { return Room<uint32_t>(words, &masks_); }

  // Enqueues the copies of all that the host wants of the step; `logits` of its rows, `kv` for
  // windows.
  void Enqueue(const MatrixView& logits, const PagedKv& kv);
  // Returns when all work enqueued before the last Enqueue or Mark is done.
  void Wait();
  // Without a step: a point for Wait.
  void Mark();

  // The step's results. `slots`: counters of every slot since its last release, brought up to this
  // step. REQUIRES: Wait. The logits live until the next Begin.
  StepResult Deliver(const ExecutorLimits& limits, std::vector<AcpStats>* slots);
  // Of the pool, in this step or before. REQUIRES: Wait.
  PoolFault pool_fault() const { return *batch_.OutputsAt(outputs_.as<std::byte>()).pool_fault; }

 private:
  struct Awaited {
    int32_t slot;
    int64_t rows;       // of logits, wanted
    bool unwanted_row;  // beside those
    bool sampled;       // on the device
    int32_t logprobs;
    int64_t end;  // tokens afterwards
  };

  Buffer Allocate(size_t bytes) const;
  template <typename T>
  T* Room(size_t count, Buffer* buffer) const {
    // Pinned allocations are slow: grow to powers of two.
    constexpr size_t kLeast = 4096;
    const size_t bytes = std::bit_ceil(std::max(count, kLeast) * sizeof(T));
    if (buffer->bytes() < bytes) *buffer = Allocate(bytes);
    return buffer->as<T>();
  }
  void Fetch(const void* device, size_t bytes, const Buffer& host);
  const float* Logits();

  Ops& ops_;
  const BatchBuilder& batch_;
  DeviceQueue* const queue_;  // null: calls return when their work is done
  StepPlan moves_;            // what MoveSlots reads
  std::vector<Awaited> sequences_;
  bool wants_windows_ = false;
  Buffer staging_, entries_, masks_, outputs_;
  Buffer first_pages_;            // [slots, lists], once a plan asked for them
  Buffer logits_;                 // [rows, V], as far as wanted
  MatrixView logits_view_;        // of the backend's; no rows: none are wanted
  std::vector<float> float32_;    // of float64 logits
  std::unique_ptr<Event> event_;  // null without a queue
};

}  // namespace fox
