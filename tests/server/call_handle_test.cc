// CallHandle: a call that is cancelled before, after and beside the start of its generation.
#include "server/call_handle.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/e2e/test_core.h"
#include "tests/server/recording_consumer.h"

namespace fox {
namespace {

class CallHandleTest : public ::testing::Test {
 protected:
  CallHandleTest() {
    test_.script->step_delay_us = 2000;
    generation_ = *Generation::Start(
        *test_.core, "call", kNever,
        [this] { return ConvertGenerate(GreedyRequest("x", 3000), true, test_.core->context); },
        &consumer_);
  }

  TestCore test_;
  RecordingConsumer consumer_{*test_.engine};
  std::shared_ptr<Generation> generation_;
  CallHandle handle_;
};

TEST_F(CallHandleTest, CancelsWhatIsSet) {
  handle_.Set(generation_);
  handle_.Cancel();
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  handle_.Cancel();  // again is harmless
}

TEST_F(CallHandleTest, CancelsWhatIsSetAfterwards) {
  handle_.Cancel();
  handle_.Set(generation_);
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
}

TEST_F(CallHandleTest, LetsGoOfWhatHasEnded) {
  generation_->Cancel(absl::CancelledError("by others"));
  EXPECT_TRUE(absl::IsCancelled(consumer_.WaitDone()));
  handle_.Release();  // Done came before Start returned
  handle_.Set(generation_);
  EXPECT_TRUE(test_.WaitIdle());
  const std::weak_ptr<Generation> watched = generation_;
  generation_ = nullptr;
  for (int i = 0; i < 1000 && !watched.expired(); ++i) {  // the pools let go of it soon
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace fox
