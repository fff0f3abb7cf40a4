// AdminService: see admin_service.h.
#include "server/rpc/admin_service.h"

#include "server/process/log.h"
#include "server/rpc/short_call.h"

namespace fox {
namespace {

// Operators are let in whatever clients hold: no share of the budget is taken.
template <class Request, class Response, class Answer>
grpc::ServerUnaryReactor* AnswerOperator(ServerCore& core, const char* method,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* out,
                                         Answer answer) {
  return AnswerAdmitted<Request, Response>(
      absl::OkStatus(), core, DescribeCall(method, *context, core), context, bytes, out,
      [&](const Request&, Response* response) {
        absl::Status status = answer();
        const EngineStats stats = core.engine.stats();
        response->set_running(static_cast<uint64_t>(stats.running));
        response->set_waiting(static_cast<uint64_t>(stats.waiting));
        return status;
      });
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return AnswerOperator<v1::DrainRequest, v1::DrainResponse>(
      core_, "Drain", context, request, response, [this] {
        Log(LogLevel::kInfo, "draining, asked by an operator");
        core_.Drain();
        on_change_();
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::Undrain(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) {
  return AnswerOperator<v1::UndrainRequest, v1::UndrainResponse>(
      core_, "Undrain", context, request, response, [this] {
        Log(LogLevel::kInfo, "taking requests again, asked by an operator");
        absl::Status status = core_.Undrain();
        on_change_();
        return status;
      });
}

}  // namespace fox
