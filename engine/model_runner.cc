// Plan in, logits and counters out.
#include "engine/model_runner.h"

#include <algorithm>
#include <limits>

namespace fox {
namespace {

SlotStats FreshStats() {
  SlotStats stats;
  stats.max_log_evicted_mass = -std::numeric_limits<double>::infinity();
  return stats;
}

}  // namespace

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options) {
  PagedKvShape shape;
  shape.layers = config.num_layers;
  shape.q_heads = config.num_heads;
  shape.kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.dtype = options.kv_dtype;
  shape.num_pages = options.num_pages;
  shape.max_slots = options.max_slots;
  shape.max_pages = PagesFor(options.max_model_len);
  shape.k_shift = config.k_shift;
  shape.v_shift = config.v_shift;
  return shape;
}

ModelRunner::ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options)
    : ops_(std::move(ops)),
      weights_(std::move(weights)),
      options_(options),
      cache_(CacheShape(weights_.config, options), *ops_),
      activations_(weights_, *ops_, options.max_batch_tokens, options.max_logit_rows),
      model_(weights_, *ops_, activations_),
      batch_(*ops_, options.max_batch_tokens, options.max_slots, options.max_logit_rows),
      slots_(static_cast<size_t>(options.max_slots), FreshStats()) {
  limits_.num_pages = options.num_pages;
  limits_.lists_per_slot = cache_.view().shape.lists_per_slot();
  limits_.max_slots = options.max_slots;
  limits_.max_model_len = options.max_model_len;
  limits_.max_batch_tokens = options.max_batch_tokens;
  limits_.max_logit_rows = options.max_logit_rows;
  limits_.vocab_size = static_cast<int32_t>(weights_.config.vocab_size);
}

absl::StatusOr<StepResult> ModelRunner::Run(const StepPlan& plan) {
  cache_.Release(plan.release_slots);
  for (int32_t slot : plan.release_slots) slots_[static_cast<size_t>(slot)] = FreshStats();
  StepResult result;
  if (!plan.sequences.empty()) {
    batch_.Build(plan, nullptr);
    const ForwardCounters counters{batch_.blocks_total(), batch_.blocks_skipped(),
                                   batch_.pages_evicted()};
    logits_ = model_.Forward(batch_.batch(), batch_.logit_rows(), batch_.num_logit_rows(),
                             options_.acp, cache_.view(), counters, nullptr);
    Deliver(plan, result);
    Count(plan, result);
  }
  result.free_pages = cache_.FreePages();
  return result;
}

// Points each sequence at its rows of logits, as float32 on the host.
void ModelRunner::Deliver(const StepPlan& plan, StepResult& result) {
  const auto count = static_cast<size_t>(logits_.rows * logits_.cols);
  host_logits_.resize(count);
  if (logits_.dtype == DType::kF64) {
    std::vector<double> wide(count);
    ops_->CopyToHost(logits_.data, count * sizeof(double), wide.data(), nullptr);
    std::transform(wide.begin(), wide.end(), host_logits_.begin(),
                   [](double x) { return static_cast<float>(x); });
  } else {
    ops_->CopyToHost(logits_.data, count * sizeof(float), host_logits_.data(), nullptr);
  }
  int64_t row = 0;
  for (const PlannedSequence& seq : plan.sequences) {
    result.logits.push_back(seq.logit_rows.empty() ? nullptr
                                                   : host_logits_.data() + row * logits_.cols);
    row += static_cast<int64_t>(seq.logit_rows.size());
  }
}

void ModelRunner::Count(const StepPlan& plan, StepResult& result) {
  const size_t n = plan.sequences.size();
  std::vector<int64_t> total(n), skipped(n), evicted(n);
  ops_->CopyToHost(batch_.blocks_total(), n * sizeof(int64_t), total.data(), nullptr);
  ops_->CopyToHost(batch_.blocks_skipped(), n * sizeof(int64_t), skipped.data(), nullptr);
  ops_->CopyToHost(batch_.pages_evicted(), n * sizeof(int64_t), evicted.data(), nullptr);
  for (size_t i = 0; i < n; ++i) {
    const PlannedSequence& seq = plan.sequences[i];
    SlotStats& stats = slots_[static_cast<size_t>(seq.slot)];
    const int64_t end = seq.position + static_cast<int64_t>(seq.token_ids.size());
    stats.blocks_total += total[i];
    stats.blocks_skipped += skipped[i];
    stats.pages_allocated = limits_.lists_per_slot * PagesFor(end);
    stats.pages_evicted += evicted[i];
    stats.live_pages = stats.pages_allocated - stats.pages_evicted;
    stats.peak_pages = std::max(stats.peak_pages, stats.live_pages);
    stats.max_log_evicted_mass = cache_.MaxLogMass(seq.slot);
    result.stats.push_back(stats);
  }
}

}  // namespace fox
