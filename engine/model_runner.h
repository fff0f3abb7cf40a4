// ModelRunner: the StepExecutor that runs a FoX model over a paged KV cache. It only computes:
// what to run was decided by the scheduler.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batch_builder.h"
#include "engine/kv/kv_cache.h"
#include "engine/step_executor.h"
#include "models/fox_model.h"

namespace fox {

struct RunnerOptions {
  AcpMode acp = AcpMode::kCertified;
  DType kv_dtype = DType::kF32;
  int32_t max_slots = 16;
  int64_t max_model_len = 0;
  int64_t max_batch_tokens = 512;
  int64_t max_logit_rows = 128;
  int num_pages = 0;
};

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options);

class ModelRunner : public StepExecutor {
 public:
  ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options);

  const ExecutorLimits& limits() const override { return limits_; }
  absl::StatusOr<StepResult> Run(const StepPlan& plan) override;

  // Logits of the last Run in the wide dtype, all rows of all sequences; host memory of the CPU
  // backend.
  const MatrixView& logits() const { return logits_; }
  KvCache& cache() { return cache_; }
  const FoxWeights& weights() const { return weights_; }
  const Ops& ops() const { return *ops_; }
  const RunnerOptions& options() const { return options_; }

 private:
  void Count(const StepPlan& plan, StepResult& result);
  void Deliver(const StepPlan& plan, StepResult& result);

  std::unique_ptr<Ops> ops_;
  FoxWeights weights_;
  RunnerOptions options_;
  ExecutorLimits limits_;
  KvCache cache_;
  Activations activations_;
  FoxModel model_;
  BatchBuilder batch_;
  std::vector<SlotStats> slots_;  // since the slot's last release
  MatrixView logits_;
  std::vector<float> host_logits_;
};

}  // namespace fox
