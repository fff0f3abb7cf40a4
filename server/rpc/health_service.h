// HealthService: grpc.health.v1 on the gRPC port. Check is open to clients without a token, so the
// library's own service will not do: it holds an answer for as long as the client does not read it,
// without a bound. These calls are served from their headers on, before a message is there. Read
// health_monitor.h next, which decides the status.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_set>

#include "grpc/health/v1/health.pb.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "server/calls/server_core.h"
#include "server/rpc/public_call_limit.h"

namespace fox {

// All methods may be called from any thread. Check is one of the core's probes; Watch has a budget
// of 1024 calls of its own, which a stop of the server does not wait for.
class HealthService final : public grpc::Service, public grpc::HealthCheckServiceInterface {
 public:
  // `core` must outlive the server that the service is registered with. `limit`: its
  // port's (port_credentials.h).
  HealthService(ServerCore& core, std::shared_ptr<PublicCallLimit> limit);

  void SetServingStatus(const std::string& service, bool serving) override;
  // Sets all services that were set before.
  void SetServingStatus(bool serving) override;

 private:
  class CheckCall;
  class WatchCall;
  template <class CallReactor>
  void Add(int index, const char* path);
  grpc::health::v1::HealthCheckResponse::ServingStatus StatusOf(const std::string& service);
  void AdvanceWatchers();

  ServerCore& core_;
  const std::shared_ptr<PublicCallLimit> limit_;
  CallBudget budget_;  // of Watch
  Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_) = {{"", false}};
  std::unordered_set<std::shared_ptr<WatchCall>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
