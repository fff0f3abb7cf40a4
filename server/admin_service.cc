// AdminService: see admin_service.h.
#include "server/admin_service.h"

#include "server/log.h"

namespace fox {

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  v1::DrainRequest message;
  v1::DrainResponse out;
  const absl::Status status = ParseMessage(*request, &message);
  if (status.ok()) {
    Log(LogLevel::kInfo, "draining, asked by an operator");
    core_.Drain();
    on_drain_();
    const EngineStats stats = core_.engine.stats();
    out.set_running(static_cast<uint64_t>(stats.running));
    out.set_waiting(static_cast<uint64_t>(stats.waiting));
  }
  return Reply(status, out, core_, context, response);
}

}  // namespace fox
