// ModelRunner: the StepExecutor that runs a FoX model over a paged KV cache. It only computes; the
// scheduler decides what to run.
//
// On a backend with a queue() two plans may be in flight. A plan is enqueued whole, except for
// samples that wait for masks; its results come back through pinned memory (step_readback.h), and
// decode steps run as captured graphs (decode_graphs.h).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/step_executor.h"
#include "engine/run/batch_builder.h"
#include "engine/run/decode_graphs.h"
#include "engine/run/step_readback.h"
#include "kernels/interface/paged_kv_storage.h"
#include "models/fox_model.h"

namespace fox {

// Fields are named like the flags of fox-server.
struct RunnerOptions {
  AcpMode acp = AcpMode::kCertified;
  DType dtype = DType::kF32;     // weights; for reports only
  DType kv_dtype = DType::kF32;  // pages
  int32_t max_num_seqs = 16;     // 0: chosen by memory when a runner is loaded (PlanStepSizes)
  int32_t spare_slots = 32;      // slots beside max_num_seqs, in which paused sequences keep pages
  int32_t snapshot_slots = 0;    // slots for the prefix cache, if the backend shares pages
  int32_t staging_buffers = 0;   // for images of snapshots, in the backend's memory
  int64_t staging_bytes = 0;     // of each
  int64_t max_model_len = 0;
  // Tokens of a step. 0: 512 on a CPU, 8192 on a GPU, or fewer when a runner is loaded with a small
  // pool. Raised to max_num_seqs, on a GPU to 128 more, so that a prompt goes on beside decodes
  // (ChunkRule).
  int64_t max_num_batched_tokens = 0;
  int64_t max_logit_rows = 0;  // rows of logits of a step; 0: 128; raised in the same way
  // ExecutorLimits::prefill_tokens_per_decode. Negative: 0 on a CPU, 96 on a GPU.
  int64_t prefill_tokens_per_decode = -1;
  int num_pages = 0;
  int32_t max_drafts = 0;          // ExecutorLimits::max_drafts
  bool enforce_eager = false;      // no graphs
  bool poison_free_pages = false;  // see PagedKvShape

  int32_t num_slots() const { return max_num_seqs + spare_slots; }
};

// `options` with the sizes of a step chosen where they are 0, and large enough that every sequence
// can decode in one step.
RunnerOptions WithStepSizes(RunnerOptions options, bool on_gpu);

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options);

// The largest work that a runner with these options gives its backend. REQUIRES: WithStepSizes.
Workload WorkloadOf(const ModelConfig& config, const RunnerOptions& options);

// Bytes that a backend needs to sample: for each slot and each token of the vocabulary a penalty
// state and a bit of the grammar's mask.
size_t PenaltyStateBytes(const ModelConfig& config, const RunnerOptions& options);

class ModelRunner : public StepExecutor {
 public:
  // `options` may be without step sizes.
  ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options);
  ~ModelRunner() override;

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::Status SetMasks(const std::vector<const uint32_t*>& masks) override;
  absl::StatusOr<StepResult> Collect() override;
  absl::Status Probe() override;
  std::byte* StagingBuffer(int32_t buffer) override {
    return staging_.at(static_cast<size_t>(buffer)).as<std::byte>();
  }

  // Captures the decode graphs of all shapes now instead of when they are first needed. REQUIRES:
  // no plan was submitted yet.
  absl::Status CaptureGraphs();

  // Logits of the plan submitted last, all rows of all sequences, in the residual dtype and in
  // memory of the backend. A row with a logits processor holds processed logits.
  const MatrixView& logits() const { return logits_; }
  const PagedKv& cache() const { return cache_.view(); }
  const FoxWeights& weights() const { return weights_; }
  Ops& ops() const { return *ops_; }
  const RunnerOptions& options() const { return options_; }

 private:
  // Carries out the plan's saves, drops, snapshots, releases, loads and starts.
  void MoveSlots(const StepPlan& plan);
  void SetPenaltyState(const StepPlan& plan, StepReadback& step);
  MatrixView Forward();
  void Score();
  void Sample(const MatrixView& logits, const uint32_t* masks);
  absl::Status Health() const;

  std::unique_ptr<Ops> ops_;
  DeviceQueue* const queue_;  // null: plans are done when Submit returns
  const Stream stream_;
  FoxWeights weights_;
  RunnerOptions options_;
  ExecutorLimits limits_;
  Activations activations_;
  FoxModel model_;
  BatchBuilder batch_;
  PagedKvStorage cache_;
  std::vector<Buffer> staging_;
  Buffer penalty_state_;                  // penalty states, then masks; empty: the host samples
  uint32_t* masks_ = nullptr;             // in penalty_state_
  std::unique_ptr<DecodeGraphs> graphs_;  // null: every step runs eagerly
  std::vector<std::unique_ptr<StepReadback>> idle_;
  std::deque<std::unique_ptr<StepReadback>> in_flight_;  // the oldest first
  std::unique_ptr<StepReadback> collected_;              // the engine still reads its logits
  std::vector<AcpStats> slots_;                          // counters since the slot's last release
  MatrixView logits_;
};

}  // namespace fox
