// Preemption swaps out or computes again: what decides, and what a sequence needs to come back.
#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

class SchedulerSwapTest : public SchedulerTest {
 protected:
  // Two lists and seven page rows; a byte a page, so much for a state.
  SchedulerSwapTest() {
    limits_.num_pages = 14;
    limits_.swap_bytes = 1000;
    limits_.swap_state_bytes = 10;
    limits_.swap_page_bytes = 1;
    limits_.swap_rate = 1e9;
    options_.kv_admission = KvAdmission::kWorstCase;
  }
  // The first grows by a row that the second has to give up; its plan.
  Schedule Crowd() {
    first_ = Add(150);
    second_ = Add(180);
    Schedule schedule;
    for (int i = 0; i < 100 && schedule.preemptions == 0; ++i) schedule = Step();
    EXPECT_EQ(schedule.preemptions, 1);
    return schedule;
  }

  Sequence* first_ = nullptr;
  Sequence* second_ = nullptr;
};

TEST_F(SchedulerSwapTest, TheCheaperWayIsTaken) {
  // 180 tokens and some against 18 bytes twice.
  for (const double prefill : {1e-4, 1e-8}) {
    sequences_.clear();
    limits_.swap_rate = 1e4;
    times_ = {};
    Start();
    for (int i = 0; i < 20; ++i) times_.RecordStep(1000, 0, 1000 * prefill);
    const Schedule schedule = Crowd();
    EXPECT_EQ(schedule.plan.swap_outs.size(), prefill > 1e-5 ? 1u : 0u);
    EXPECT_EQ(scheduler_->swap_space().ranges(), prefill > 1e-5 ? 1 : 0);
    EXPECT_EQ(second_->computed > 0, prefill > 1e-5);
  }
}

}  // namespace
}  // namespace fox
