// AdminService: see admin_service.h.
#include "server/rpc/admin_service.h"

#include "server/process/log.h"

namespace fox {
namespace {

template <class Response>
void TellLoad(const ServerCore& core, Response* response) {
  const EngineStats stats = core.engine.stats();
  response->set_running(static_cast<uint64_t>(stats.running));
  response->set_waiting(static_cast<uint64_t>(stats.waiting));
}

}  // namespace

// Operators are let in whatever clients hold.
AdminService::AdminService(ServerCore& core, const std::function<void()>& on_change)
    : RawService(core) {
  ServeShort<v1::DrainRequest, v1::DrainResponse>(
      "Drain",
      [&core, on_change](const v1::DrainRequest&, v1::DrainResponse* response) {
        Log(LogLevel::kInfo, "draining, asked by an operator");
        core.Drain();
        on_change();
        TellLoad(core, response);
        return absl::OkStatus();
      },
      /*takes_share=*/false);
  ServeShort<v1::UndrainRequest, v1::UndrainResponse>(
      "Undrain",
      [&core, on_change](const v1::UndrainRequest&, v1::UndrainResponse* response) {
        Log(LogLevel::kInfo, "taking requests again, asked by an operator");
        absl::Status status = core.Undrain();
        on_change();
        TellLoad(core, response);
        return status;
      },
      /*takes_share=*/false);
}

}  // namespace fox
