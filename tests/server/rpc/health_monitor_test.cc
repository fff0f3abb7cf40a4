// HealthMonitor: what turns health, at once or at a tick, and that a failure is reported once.
#include "server/rpc/health_monitor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "grpcpp/health_check_service_interface.h"
#include "tests/e2e/test_core.h"

namespace fox {
namespace {

// Records statuses as the library's service does.
class RecordingHealth final : public grpc::HealthCheckServiceInterface {
 public:
  void SetServingStatus(const std::string& service, bool serving) override {
    const MutexLock lock(mutex_);
    serving_[service] = serving;
  }
  void SetServingStatus(bool serving) override {
    const MutexLock lock(mutex_);
    for (auto& [service, status] : serving_) status = serving;
  }
  // All services have this status.
  bool All(bool serving) const {
    const MutexLock lock(mutex_);
    for (const auto& [service, status] : serving_) {
      if (status != serving) return false;
    }
    return serving_.size() == 3;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_) = {{"", false}};
};

// Of a submission whose outputs are of no interest.
class Unheard final : public SubmissionListener {
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput) override {}
};

class HealthMonitorTest : public ::testing::Test {
 protected:
  void Submit(int32_t max_tokens) {
    Request request;
    request.id = test_.engine->NextId();
    request.prompt = {1, 2, 3};
    request.stop.max_tokens = max_tokens;
    test_.engine->Submit({request}, std::make_shared<Unheard>());
  }

  TestCore test_;
  RecordingHealth health_;
  const std::vector<std::string> services_ = {"fox.v1.Inference", "fox.v1.Info"};
};

TEST_F(HealthMonitorTest, ServesFromTheStartAndDrainsAtOnce) {
  HealthMonitor monitor(*test_.core, &health_, services_, nullptr);
  EXPECT_TRUE(health_.All(true));
  test_.core->Drain();
  monitor.Check();
  EXPECT_TRUE(health_.All(false));
}

// Health turns at half of the limit; the limit itself is not reached.
TEST_F(HealthMonitorTest, ALongStepTurnsItAndItsEndTurnsItBack) {
  std::atomic<int> reported{0};
  HealthMonitor monitor(
      *test_.core, &health_, services_, [&] { ++reported; },
      /*step_timeout=*/1.6);
  EXPECT_TRUE(health_.All(true));
  test_.script->step_delay_us = 1100000;
  Submit(1);
  EXPECT_TRUE(Eventually([&] { return health_.All(false); }));
  EXPECT_TRUE(Eventually([&] { return health_.All(true); }));
  EXPECT_EQ(reported, 0);
}

TEST_F(HealthMonitorTest, AHangIsReportedOnceWhileItLasts) {
  std::atomic<int> reported{0};
  HealthMonitor monitor(
      *test_.core, &health_, services_, [&] { ++reported; },
      /*step_timeout=*/0.3);
  test_.script->step_delay_us = 600000;
  Submit(1);
  EXPECT_TRUE(Eventually([&] { return reported > 0; }));
  EXPECT_TRUE(test_.engine->fatal().ok());
  EXPECT_TRUE(health_.All(false));
  EXPECT_TRUE(Eventually([&] { return health_.All(true); }));
  EXPECT_EQ(reported, 1);
}

// A model whose steps take long has a limit of its own.
TEST_F(HealthMonitorTest, TheLimitGrowsWithTheStepsSeen) {
  std::atomic<int> reported{0};
  HealthMonitor monitor(
      *test_.core, &health_, services_, [&] { ++reported; },
      /*step_timeout=*/0.5);
  test_.script->step_delay_us = 300000;  // limit: about 1.2 s from here on
  Submit(1);
  EXPECT_TRUE(Eventually([&] { return test_.engine->idle(); }));
  test_.script->step_delay_us = 800000;
  Submit(1);
  EXPECT_TRUE(Eventually([&] { return test_.engine->idle(); }));
  EXPECT_EQ(reported, 0);
}

TEST_F(HealthMonitorTest, StuckDeliveriesTurnIt) {
  std::atomic<double> age{0};
  HealthMonitor monitor(*test_.core, &health_, services_, nullptr, /*step_timeout=*/60,
                        [&] { return age.load(); });
  EXPECT_TRUE(health_.All(true));
  age = kMaxDeliverySeconds + 1;
  EXPECT_TRUE(Eventually([&] { return health_.All(false); }));
  age = 0;
  EXPECT_TRUE(Eventually([&] { return health_.All(true); }));
}

TEST_F(HealthMonitorTest, AStoppedEngineDoesNotHang) {
  std::atomic<int> reported{0};
  HealthMonitor monitor(
      *test_.core, &health_, services_, [&] { ++reported; },
      /*step_timeout=*/0.1);
  test_.engine->Stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // four limits
  EXPECT_EQ(reported, 0);
}

TEST_F(HealthMonitorTest, AFailureIsReportedOnce) {
  std::atomic<int> reported{0};
  {
    HealthMonitor monitor(*test_.core, &health_, services_, [&] { ++reported; });
    EXPECT_TRUE(health_.All(true));
    test_.script->fail = true;
    Submit(1);
    EXPECT_TRUE(Eventually([&] { return reported > 0; }));
    EXPECT_TRUE(health_.All(false));
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // three ticks
  }
  EXPECT_EQ(reported, 1);
}

}  // namespace
}  // namespace fox
