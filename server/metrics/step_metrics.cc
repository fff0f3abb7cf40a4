// StepMetrics: bounds of the histograms, and the time of a step.
#include "server/metrics/step_metrics.h"

#include <algorithm>

#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

std::vector<double> SecondsBounds() {
  return {0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075,
          0.1,    0.15,  0.25,   0.5,   0.75,  1,     2.5,    5,    10,    30,    60};
}

}  // namespace

StepMetrics::StepMetrics()
    : prefill_seconds(SecondsBounds()),
      decode_seconds(SecondsBounds()),
      tokens({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}) {}

void StepMetrics::BeforeSubmit(const StepPlan&) { submitted_.push_back(SteadySeconds()); }

void StepMetrics::AfterCollect(const StepPlan& plan, const StepResult&) {
  FOX_CHECK(!submitted_.empty());
  const Seconds begin = std::max(submitted_.front(), collected_);
  submitted_.pop_front();
  collected_ = SteadySeconds();
  if (plan.sequences.empty()) return;  // the plan only released slots
  const bool feeds_prompt =
      std::any_of(plan.sequences.begin(), plan.sequences.end(),
                  [](const PlannedSequence& sequence) { return sequence.token_ids.size() > 1; });
  (feeds_prompt ? prefill_seconds : decode_seconds).Observe(collected_ - begin);
  tokens.Observe(static_cast<double>(plan.num_tokens()));
}

}  // namespace fox
