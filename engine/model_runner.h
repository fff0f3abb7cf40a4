// ModelRunner: the StepExecutor that runs a FoX model over a paged KV cache. It only computes:
// what to run was decided by the scheduler.
//
// On a backend with a queue() two plans may be in flight: a plan is enqueued whole, its report
// comes back through pinned memory, and decode steps run as captured graphs, one for each batch
// bucket. Graphs change when work is launched, never what is computed.
#pragma once

#include <deque>
#include <map>
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
  bool enforce_eager = false;      // no graphs
  bool poison_free_pages = false;  // see PagedKvShape
};

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options);

// Bytes of the token states that a backend samples with: one for every slot and token of the
// vocabulary.
size_t PenaltyStateBytes(const ModelConfig& config, const RunnerOptions& options);

// The smallest batch that decode steps of `seqs` sequences are padded to: 1, 2, 4, then multiples
// of 8 up to 64, then of 32.
int64_t DecodeBucket(int64_t seqs);

class ModelRunner : public StepExecutor {
 public:
  ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options);
  ~ModelRunner() override;

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Collect() override;

  // Captures the decode graphs of all buckets now instead of when they are first needed. REQUIRES:
  // no plan was submitted yet.
  absl::Status CaptureGraphs();
  // Replays the last decode graph `count` times in a row and waits: for benchmarks, leaves the
  // cache in disorder.
  absl::Status ReplayLastGraph(int count);

  // Logits of the last submitted plan in the residual dtype, all rows of all sequences; memory of
  // the backend. Rows sampled from with an logits_processor hold the processed ones.
  const MatrixView& logits() const { return logits_; }
  KvCache& cache() { return cache_; }
  const FoxWeights& weights() const { return weights_; }
  Ops& ops() const { return *ops_; }
  const RunnerOptions& options() const { return options_; }

 private:
  struct InFlight;
  struct DecodeGraph {
    bool warm = false;  // ran once, so that capturing allocates nothing
    std::unique_ptr<Graph> graph;
    MatrixView logits;
  };

  void SetPenaltyState(const StepPlan& plan, InFlight& step);
  void Forward(AcpMode acp);
  void RunDecode(int64_t bucket);
  // Of the batch in `padding`, filled up to the bucket: nothing is touched.
  absl::Status CaptureGraph(const StepPlan& padding, int64_t bucket);
  void ReadBack(InFlight& step);
  absl::Status Health() const;
  void Deliver(InFlight& step, StepResult& result);
  void Count(const InFlight& step, StepResult& result);

  std::unique_ptr<Ops> ops_;
  DeviceQueue* const queue_;  // null: plans are done when Submit returns
  const Stream stream_;
  FoxWeights weights_;
  RunnerOptions options_;
  ExecutorLimits limits_;
  Activations activations_;
  FoxModel model_;
  BatchBuilder batch_;
  KvCache cache_;
  Buffer penalty_state_;                      // empty where the backend does not sample
  using GraphKey = std::pair<int64_t, bool>;  // bucket, BatchView::small
  std::map<GraphKey, DecodeGraph> graphs_;
  GraphKey last_graph_{};
  std::vector<std::unique_ptr<InFlight>> idle_;
  std::deque<std::unique_ptr<InFlight>> in_flight_;  // the oldest first
  std::unique_ptr<InFlight> collected_;              // its logits are still being read
  std::vector<SlotStats> slots_;                     // since the slot's last release
  MatrixView logits_;
};

}  // namespace fox
