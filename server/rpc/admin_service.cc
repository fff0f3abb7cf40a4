// AdminService: see services.h.
#include "server/process/log.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

template <class Response>
Response LoadOf(const ServerCore& core) {
  const EngineStats stats = core.engine.stats();
  Response response;
  response.set_running(static_cast<uint64_t>(stats.running));
  response.set_waiting(static_cast<uint64_t>(stats.waiting));
  return response;
}

}  // namespace

// Operators are let in whatever clients hold.
AdminService::AdminService(ServerCore& core, const std::function<void()>& on_change)
    : RawService(core) {
  ServeShort<v1::DrainRequest, v1::DrainResponse>(
      "Drain",
      [&core, on_change](const v1::DrainRequest&, const CallInfo&) {
        Log(LogLevel::kInfo, "draining, asked by an operator");
        core.Drain();
        on_change();
        return LoadOf<v1::DrainResponse>(core);
      },
      /*takes_share=*/false);
  ServeShort<v1::FlushCacheRequest, v1::FlushCacheResponse>(
      "FlushCache",
      [&core](const v1::FlushCacheRequest&,
              const CallInfo&) -> absl::StatusOr<v1::FlushCacheResponse> {
        Log(LogLevel::kInfo, "flushing the prefix cache, asked by an operator");
        auto response = LoadOf<v1::FlushCacheResponse>(core);
        response.set_snapshots(static_cast<uint64_t>(core.engine.stats().snapshots));
        absl::Status status = core.engine.FlushPrefixCache();
        if (!status.ok()) return status;
        return response;
      },
      /*takes_share=*/false);
  ServeShort<v1::UndrainRequest, v1::UndrainResponse>(
      "Undrain",
      [&core, on_change](const v1::UndrainRequest&,
                         const CallInfo&) -> absl::StatusOr<v1::UndrainResponse> {
        Log(LogLevel::kInfo, "taking requests again, asked by an operator");
        absl::Status status = core.Undrain();
        on_change();
        if (!status.ok()) return status;
        return LoadOf<v1::UndrainResponse>(core);
      },
      /*takes_share=*/false);
}

}  // namespace fox
