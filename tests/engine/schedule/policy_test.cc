// Policy: victims, and requests that no longer start. scheduler_admission_test.cc,
// engine_load_test.cc and the simulation test the order of sequences and their shares.
#include "engine/schedule/policy.h"

#include <memory>

#include "gtest/gtest.h"

namespace fox {
namespace {

class PolicyTest : public testing::Test {
 protected:
  Sequence* Add(int64_t prompt) {
    Request request;
    request.stop.max_tokens = 100;
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    const auto place = static_cast<int64_t>(sequences_.size());
    sequences_.push_back(
        std::make_unique<Sequence>(std::move(request), EngineOptions(), 1000, place, 0.0));
    sequences_.back()->place = place;
    return sequences_.back().get();
  }
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(PolicyTest, PagesOfPausedOnesGoFirstThenTheCheapest) {
  EXPECT_EQ(PagesVictim({}), nullptr);
  Sequence* waits = Add(5);
  Sequence* longer = Add(20);
  Sequence* shorter = Add(10);
  waits->state = SequenceState::kWaiting;
  longer->state = shorter->state = SequenceState::kPaused;
  EXPECT_EQ(PagesVictim({waits, longer, shorter}), shorter);
  EXPECT_EQ(PagesVictim({waits}), waits);
}

TEST_F(PolicyTest, ARequestThatCannotEndInTimeDoesNotStart) {
  ServiceTimes times;
  Sequence* next = Add(10);
  next->request.deadline = 0.5;
  EXPECT_FALSE(MissesDeadline(*next, times, 0.4));  // nothing is known
  for (int i = 0; i < 20; ++i) times.RecordStep(100, 0, 1);
  EXPECT_FALSE(MissesDeadline(*next, times, 0.3));
  EXPECT_TRUE(MissesDeadline(*next, times, 0.45));  // its prompt takes 0.1 s
  next->started = true;
  EXPECT_FALSE(MissesDeadline(*next, times, 0.45));
}

}  // namespace
}  // namespace fox
