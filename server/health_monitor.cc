// HealthMonitor: see health_monitor.h.
#include "server/health_monitor.h"

#include <chrono>
#include <utility>

#include "grpcpp/health_check_service_interface.h"
#include "server/log.h"

namespace fox {
namespace {

constexpr std::chrono::milliseconds kInterval(50);

}  // namespace

HealthMonitor::HealthMonitor(const ServerCore& core, grpc::HealthCheckServiceInterface* health,
                             std::vector<std::string> services, std::function<void()> on_fatal,
                             double max_heartbeat_age)
    : core_(core),
      health_(health),
      services_(std::move(services)),
      max_heartbeat_age_(max_heartbeat_age),
      on_fatal_(std::move(on_fatal)) {
  if (health_ != nullptr) {
    for (const std::string& service : services_) health_->SetServingStatus(service, false);
  }
  Check();
  thread_ = std::thread([this] { Loop(); });
}

HealthMonitor::~HealthMonitor() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void HealthMonitor::Check() {
  const bool serving = !core_.engine.draining() && core_.engine.fatal().ok() &&
                       core_.engine.HeartbeatAge() < max_heartbeat_age_;
  const MutexLock lock(mutex_);
  if (serving == serving_) return;
  serving_ = serving;
  if (health_ != nullptr) {
    health_->SetServingStatus(serving);  // all known names, "" among them
    for (const std::string& service : services_) health_->SetServingStatus(service, serving);
  }
  Log(LogLevel::kInfo, serving ? "health is SERVING" : "health is NOT_SERVING");
}

void HealthMonitor::Loop() {
  while (WaitForTick()) {
    Check();
    if (on_fatal_ && !core_.engine.fatal().ok()) std::exchange(on_fatal_, nullptr)();
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
