// Plans as a wrong scheduler would make them: bugs planted between the engine and its executor.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/request/step_plan.h"
#include "tests/engine/sim/bugs.h"

namespace fox::sim {

class PlanSpoiler {
 public:
  explicit PlanSpoiler(Bug bug) : bug_(bug) {}

  // Whether the plan is to be changed; then into what.
  bool Spoils(const StepPlan& plan) {
    if (bug_ < Bug::kPlanKeepsSlot || bug_ > Bug::kPlanForgetsStart) return false;
    if (bug_ == Bug::kPlanSwapsToOther) return plan.swap_outs.size() > 1;
    if (bug_ == Bug::kPlanForgetsSwapIn) return !plan.swap_ins.empty();
    if (bug_ >= Bug::kPlanKeepsSnapshot && plan.drop_snapshots.empty() && plan.starts.empty()) {
      return false;
    }
    return !plan.sequences.empty() && ++clock_ % 3 == 0;
  }
  void Spoil(StepPlan* plan) const {
    PlannedSequence& first = plan->sequences.front();
    std::vector<int32_t>& tokens = first.token_ids;
    const bool chunk = tokens.size() > 1;
    switch (bug_) {
      case Bug::kPlanKeepsSlot:
        if (!plan->release_slots.empty()) plan->release_slots.pop_back();
        break;
      case Bug::kPlanReleasesEarly:
        if (first.position > 0) plan->release_slots.push_back(first.slot);
        break;
      case Bug::kPlanSkipsToken:
        if (chunk && first.logit_rows.empty()) tokens.erase(tokens.begin());
        break;
      case Bug::kPlanRepeatsToken:
        if (chunk && first.logit_rows.empty()) tokens.push_back(tokens.back());
        break;
      case Bug::kPlanSwapsTokens:
        if (chunk) std::swap(tokens.front(), tokens.back());
        break;
      case Bug::kPlanSwapsSlots:
        if (plan->sequences.size() > 1) std::swap(first.slot, plan->sequences.back().slot);
        break;
      case Bug::kPlanSamplesEarly:
        if (chunk && !first.logit_rows.empty()) --first.logit_rows.back();
        break;
      case Bug::kPlanWrongPosition:
        if (first.sample) ++first.sample->position;
        break;
      case Bug::kPlanLosesStates:
        if (!plan->penalty_state.empty()) plan->penalty_state.pop_back();
        break;
      case Bug::kPlanWrongTolerance:
        first.log_tolerance = -10;
        break;
      case Bug::kPlanSwapsToOther:
        plan->swap_outs.front().offset = plan->swap_outs.back().offset;
        break;
      case Bug::kPlanForgetsSwapIn:
        plan->swap_ins.pop_back();
        break;
      case Bug::kPlanKeepsSnapshot:
        if (!plan->drop_snapshots.empty()) plan->drop_snapshots.pop_back();
        break;
      case Bug::kPlanDropsEarly:
        if (!plan->starts.empty()) plan->drop_snapshots.push_back(plan->starts.back().from);
        break;
      case Bug::kPlanForgetsStart:
        if (!plan->starts.empty()) plan->starts.pop_back();
        break;
      default:
        break;
    }
  }

 private:
  const Bug bug_;
  uint64_t clock_ = 0;
};

}  // namespace fox::sim
