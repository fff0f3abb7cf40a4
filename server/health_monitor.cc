// HealthMonitor: see health_monitor.h.
#include "server/health_monitor.h"

#include <chrono>
#include <utility>

#include "grpcpp/health_check_service_interface.h"
#include "server/log.h"

namespace fox {
namespace {

constexpr double kOldestHeartbeat = 10.0;  // seconds; a step never takes that long
constexpr std::chrono::milliseconds kInterval(50);

}  // namespace

HealthMonitor::HealthMonitor(const ServerCore& core, grpc::HealthCheckServiceInterface* health,
                             std::vector<std::string> services, std::function<void()> on_fatal)
    : core_(core), health_(health), services_(std::move(services)), on_fatal_(std::move(on_fatal)) {
  if (health_ != nullptr) {
    for (const std::string& service : services_) health_->SetServingStatus(service, false);
  }
  Check();
  thread_ = std::thread([this] { Loop(); });
}

HealthMonitor::~HealthMonitor() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void HealthMonitor::Check() {
  const bool serving = !core_.engine.draining() && core_.engine.fatal().ok() &&
                       core_.engine.HeartbeatAge() < kOldestHeartbeat;
  std::lock_guard<std::mutex> lock(mutex_);
  if (serving == serving_) return;
  serving_ = serving;
  if (health_ != nullptr) {
    health_->SetServingStatus(serving);  // all known names, "" among them
    for (const std::string& service : services_) health_->SetServingStatus(service, serving);
  }
  Log(LogLevel::kInfo, serving ? "health is SERVING" : "health is NOT_SERVING");
}

void HealthMonitor::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    lock.unlock();
    Check();
    if (on_fatal_ && !core_.engine.fatal().ok()) std::exchange(on_fatal_, nullptr)();
    lock.lock();
  }
}

}  // namespace fox
