// HealthMonitor: see health_monitor.h.
#include "server/rpc/health_monitor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/steady_clock.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/process/log.h"

namespace fox {
namespace {

constexpr std::chrono::milliseconds kInterval(50);
constexpr double kLongestLook = 0.1;  // seconds; a longer gap means that the process was stopped
constexpr double kSlowerThanEver = 4;

}  // namespace

HealthMonitor::HealthMonitor(ServerCore& core, grpc::HealthCheckServiceInterface* health,
                             const std::vector<std::string>& services,
                             std::function<void()> on_fatal, double step_timeout,
                             std::function<double()> delivery_age)
    : core_(core),
      health_(health),
      step_timeout_(step_timeout),
      delivery_age_(std::move(delivery_age)),
      on_fatal_(std::move(on_fatal)),
      last_look_(SteadySeconds()) {
  for (const std::string& service : services) health_->SetServingStatus(service, false);
  Check();
  thread_ = std::thread([this] { Loop(); });
}

HealthMonitor::~HealthMonitor() { Stop(); }

void HealthMonitor::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    serving_ = false;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void HealthMonitor::Check() {
  const MutexLock lock(mutex_);  // else an older look could overwrite a newer one
  if (stopping_) return;
  const bool serving = !core_.engine.draining() && step_seconds_ < StepLimit() / 2 &&
                       (!delivery_age_ || delivery_age_() < kMaxDeliverySeconds) &&
                       core_.engine.fatal().ok();
  if (serving == serving_) return;
  serving_ = serving;
  health_->SetServingStatus(serving);  // all known names, "" among them
  Log(LogLevel::kInfo, serving ? "health is SERVING" : "health is NOT_SERVING");
}

double HealthMonitor::StepLimit() const {
  return std::max(step_timeout_, kSlowerThanEver * slowest_step_);
}

bool HealthMonitor::Measure() {
  const double now = SteadySeconds(), age = core_.engine.HeartbeatAge();
  const double passed = now - std::exchange(last_look_, now);
  // After the loop's end the age is below 0.
  const bool turned = age < std::max(0.0, std::exchange(last_age_, age) + passed / 2);
  const MutexLock lock(mutex_);
  if (!turned) {
    step_seconds_ += std::min(passed, kLongestLook);
  } else {
    slowest_step_ = std::max(slowest_step_, std::exchange(step_seconds_, 0.0));
  }
  return step_seconds_ > StepLimit();
}

void HealthMonitor::Loop() {
  while (WaitForTick()) {
    const bool hangs = Measure();
    if (hangs && on_fatal_) Log(LogLevel::kError, "a step hangs");
    Check();
    if (on_fatal_ && (hangs || !core_.engine.fatal().ok())) std::exchange(on_fatal_, nullptr)();
    core_.stalls().EndStalled(SteadySeconds());
    core_.probes().EndStalled(SteadySeconds());
    heap_.Check(SteadySeconds());
  }
}

bool HealthMonitor::WaitForTick() {
  const auto tick = std::chrono::steady_clock::now() + kInterval;
  const MutexLock lock(mutex_);
  while (!stopping_ && wake_.WaitUntil(mutex_, tick)) {
  }
  return !stopping_;
}

}  // namespace fox
