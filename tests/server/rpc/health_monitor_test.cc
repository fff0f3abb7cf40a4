// HealthMonitor: what turns health, at once or at a tick, and that a failure is reported once.
#include "server/rpc/health_monitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "grpcpp/health_check_service_interface.h"
#include "tests/fixtures/test_core.h"

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
  // All three services have this status.
  bool All(bool serving) const {
    const MutexLock lock(mutex_);
    return std::count_if(serving_.begin(), serving_.end(),
                         [&](const auto& entry) { return entry.second == serving; }) == 3;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_) = {{"", false}};
};

// For a submission whose outputs are of no interest.
class Unheard final : public SubmissionListener {
  void OnSubmitted(const absl::Status&) override {}
  void OnOutput(RequestOutput, Seconds) override {}
};

class HealthMonitorTest : public ::testing::Test {
 protected:
  // From now on, and it serves.
  void Watch(double step_timeout = 60, std::function<double()> delivery_age = nullptr) {
    monitor_.emplace(
        *test_.core, &health_, std::vector<std::string>{"fox.v1.Inference", "fox.v1.Info"},
        [this] { ++reported_; }, step_timeout, std::move(delivery_age));
    EXPECT_TRUE(health_.All(true));
  }
  // A request of one step, which takes so long.
  void Step(int milliseconds) {
    test_.script->step_delay_us = 1000 * milliseconds;
    Request request;
    request.id = test_.engine->NextId();
    request.prompt = {1, 2, 3};
    request.stop.max_tokens = 1;
    test_.engine->Submit({request}, std::make_shared<Unheard>());
  }
  bool Turns(bool serving) {
    return Eventually([this, serving] { return health_.All(serving); });
  }

  TestCore test_;
  RecordingHealth health_;
  std::atomic<int> reported_{0};
  std::optional<HealthMonitor> monitor_;
};

// Health turns at half of the limit; the limit itself is not reached.
TEST_F(HealthMonitorTest, ALongStepTurnsItAndItsEndTurnsItBack) {
  Watch(/*step_timeout=*/1.6);
  Step(1100);
  EXPECT_TRUE(Turns(false));
  EXPECT_TRUE(Turns(true));
  EXPECT_EQ(reported_, 0);
}

TEST_F(HealthMonitorTest, AHangIsReportedOnceWhileItLasts) {
  Watch(/*step_timeout=*/0.3);
  Step(600);
  EXPECT_TRUE(Eventually([this] { return reported_ > 0; }));
  EXPECT_TRUE(test_.engine->fatal().ok());
  EXPECT_TRUE(health_.All(false));
  EXPECT_TRUE(Turns(true));
  EXPECT_EQ(reported_, 1);
}

// A model whose steps take long has a limit of its own.
TEST_F(HealthMonitorTest, TheLimitGrowsWithTheStepsSeen) {
  Watch(/*step_timeout=*/0.5);
  for (const int milliseconds : {300, 800}) {  // limit: about 1.2 s after the first
    SCOPED_TRACE(milliseconds);
    Step(milliseconds);
    EXPECT_TRUE(Eventually([this] { return test_.engine->idle(); }));
  }
  EXPECT_EQ(reported_, 0);
}

TEST_F(HealthMonitorTest, StuckDeliveriesTurnIt) {
  std::atomic<double> age{0};
  Watch(/*step_timeout=*/60, [&] { return age.load(); });
  age = kMaxDeliverySeconds + 1;
  EXPECT_TRUE(Turns(false));
  age = 0;
  EXPECT_TRUE(Turns(true));
  monitor_.reset();  // before `age`
}

TEST_F(HealthMonitorTest, AStoppedEngineDoesNotHang) {
  Watch(/*step_timeout=*/0.1);
  test_.engine->Stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // four limits
  EXPECT_EQ(reported_, 0);
}

TEST_F(HealthMonitorTest, AFailureIsReportedOnce) {
  Watch();
  test_.script->fail = true;
  Step(0);
  EXPECT_TRUE(Eventually([this] { return reported_ > 0; }));
  EXPECT_TRUE(health_.All(false));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));  // three ticks
  EXPECT_EQ(reported_, 1);
}

}  // namespace
}  // namespace fox
