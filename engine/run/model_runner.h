// ModelRunner: the StepExecutor that runs a FoX model over a paged KV cache. It only computes:
// what to run was decided by the scheduler.
//
// On a backend with a queue() two plans may be in flight: a plan is enqueued whole, but for samples
// that wait for masks; what it reports comes back through pinned memory (step_readback.h), and
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

// Names are those of fox-server's flags.
struct RunnerOptions {
  AcpMode acp = AcpMode::kCertified;
  DType dtype = DType::kF32, kv_dtype = DType::kF32;  // of weights, for reports; of pages
  int32_t max_num_seqs = 16;   // 0: by the memory (PlanStepSizes), where a runner is loaded
  int32_t spare_slots = 32;    // beside max_num_seqs, where paused sequences keep their pages
  int32_t snapshot_slots = 0;  // for a prefix cache, where the backend shares pages
  int64_t max_model_len = 0;
  // Of one step; 0: 512 on the CPU, 8192 on a GPU, less where a runner is loaded with a small pool.
  // At least max_num_seqs, on a GPU 128 more, so that a prompt goes on beside decodes
  // (ExecutorLimits::chunk_multiple): less is raised to that.
  int64_t max_num_batched_tokens = 0;
  int64_t max_logit_rows = 0;  // of one step; 0: 128; raised likewise
  // ExecutorLimits'; negative: 0 on the CPU, 1536 on a GPU, where a step of that size takes about
  // as long as three decode steps.
  int64_t max_mixed_tokens = -1;
  int num_pages = 0;
  int32_t max_drafts = 0;          // ExecutorLimits'
  int64_t swap_bytes = 0;          // of host memory, for slots that are swapped out
  bool enforce_eager = false;      // no graphs
  bool poison_free_pages = false;  // see PagedKvShape

  int32_t num_slots() const { return max_num_seqs + spare_slots; }
};

// `options` with the sizes of a step chosen: no 0 is left that means a default, and every sequence
// can decode in it.
RunnerOptions WithStepSizes(RunnerOptions options, bool on_gpu);

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options);

// All that a runner with these options, sizes of a step among them, asks of its backend.
Workload WorkloadOf(const ModelConfig& config, const RunnerOptions& options);

// Bytes of what a backend samples with: of each slot a penalty state and a bit, whether it may
// follow, for each token of the vocabulary.
size_t PenaltyStateBytes(const ModelConfig& config, const RunnerOptions& options);

class ModelRunner : public StepExecutor {
 public:
  // `options` need not have step sizes.
  ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options);
  ~ModelRunner() override;

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::Status SetMasks(const std::vector<const uint32_t*>& masks) override;
  absl::StatusOr<StepResult> Collect() override;
  absl::Status Probe() override;

  // Captures the decode graphs of all shapes now instead of when they are first needed. REQUIRES:
  // no plan was submitted yet.
  absl::Status CaptureGraphs();

  // Logits of the last submitted plan in the residual dtype, all rows of all sequences; memory of
  // the backend. Rows with a logits processor hold the processed ones.
  const MatrixView& logits() const { return logits_; }
  const PagedKv& cache() const { return cache_.view(); }
  const FoxWeights& weights() const { return weights_; }
  Ops& ops() const { return *ops_; }
  const RunnerOptions& options() const { return options_; }

 private:
  // What a plan does to slots before its sequences run.
  void MoveSlots(const StepPlan& plan);
  void SetPenaltyState(const StepPlan& plan, StepReadback& step);
  MatrixView Forward();
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
  Buffer penalty_state_;                  // empty where the backend does not sample; masks behind
  uint32_t* masks_ = nullptr;             // in penalty_state_
  Buffer swap_space_;                     // host memory, which only operations touch
  std::unique_ptr<DecodeGraphs> graphs_;  // null: every step runs eagerly
  std::vector<std::unique_ptr<StepReadback>> idle_;
  std::deque<std::unique_ptr<StepReadback>> in_flight_;  // the oldest first
  std::unique_ptr<StepReadback> collected_;              // its logits are still being read
  std::vector<AcpStats> slots_;                          // since the slot's last release
  MatrixView logits_;
};

}  // namespace fox
