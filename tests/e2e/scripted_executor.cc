// ScriptedExecutor: see scripted_executor.h.
#include "tests/e2e/scripted_executor.h"

#include <thread>

#include "kernels/paged_kv.h"

namespace fox {

ScriptedExecutor::ScriptedExecutor(const ExecutorLimits& limits,
                                   std::shared_ptr<ExecutorScript> script)
    : limits_(limits), script_(std::move(script)) {}

int32_t ScriptedExecutor::NextToken(int32_t token, int64_t position) {
  if (position % 5 == 4) return ' ';
  return 'a' + static_cast<int32_t>((token * 7 + position * 3) % 26);
}

absl::Status ScriptedExecutor::Submit(const StepPlan& plan) {
  result_ = Execute(plan);
  return result_.status();
}

absl::StatusOr<StepResult> ScriptedExecutor::Execute(const StepPlan& plan) {
  script_->step_waits = true;
  const std::lock_guard<std::mutex> lock(script_->step);
  script_->step_waits = false;
  if (script_->fail) return absl::UnavailableError("scripted failure");
  const int delay = script_->step_delay_us;
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  for (int32_t slot : plan.release_slots) tokens_.erase(slot);

  size_t rows = 0;
  for (const PlannedSequence& sequence : plan.sequences) rows += sequence.logit_rows.size();
  const auto vocab = static_cast<size_t>(limits_.vocab_size);
  logits_.assign(rows * vocab, 0.0f);
  StepResult result;
  size_t row = 0;
  for (const PlannedSequence& sequence : plan.sequences) {
    tokens_[sequence.slot] = sequence.position + static_cast<int64_t>(sequence.token_ids.size());
    result.logits.push_back(sequence.logit_rows.empty() ? nullptr : &logits_[row * vocab]);
    for (int32_t r : sequence.logit_rows) {
      const int32_t token = sequence.token_ids[static_cast<size_t>(r)];
      logits_[row * vocab + static_cast<size_t>(NextToken(token, sequence.position + r))] = 8.0f;
      ++row;
    }
    result.sampled.emplace_back(SampledToken{});
    AcpStats stats;
    stats.pages_allocated = PagesFor(tokens_[sequence.slot]) * limits_.lists_per_slot;
    stats.peak_pages = stats.pages_allocated;
    stats.log_tolerance = sequence.log_tolerance;
    result.stats.push_back(stats);
  }
  result.free_pages = limits_.num_pages;
  for (const auto& [slot, count] : tokens_) {
    result.free_pages -= PagesFor(count) * limits_.lists_per_slot;
  }
  return result;
}

}  // namespace fox
