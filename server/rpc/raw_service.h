// RawService: a fox.v1 service whose methods are given by name, each with what serves it. Messages
// come and go as bytes (wire.h says why).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "server/rpc/generation_reactor.h"

namespace fox {

// `Definition` is the generated class, such as v1::Info.
template <class Definition>
class RawService : public Definition::Service {
 protected:
  using Bytes = grpc::ByteBuffer;
  // Makes the reactor of a call. Runs on gRPC's thread: never waits.
  using Handler = std::function<CallReactor*(grpc::CallbackServerContext*, const Bytes*)>;

  // `core` must outlive the server that the service is registered with.
  explicit RawService(ServerCore& core) : core_(core) {}

  // Does what the generated WithRawCallbackMethod_NAME does, for a method of any kind. A method is
  // named as the log calls it: NAME or SERVICE.NAME.
  void Serve(const std::string& method, Handler handler) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        Definition::service_full_name());
    this->MarkMethodRawCallback(
        service->FindMethodByName(method.substr(method.rfind('.') + 1))->index(),
        new grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>(std::move(handler)));
  }

  void Serve(std::shared_ptr<const GenerationMethod> method) {
    const std::string name = method->name;
    Serve(name, [this, method = std::move(method)](grpc::CallbackServerContext* context,
                                                   const Bytes* request) {
      return GenerationReactor::Start(core_, *method, context, request);
    });
  }

  // A method whose message is small and whose answer takes no time: all of it happens in the
  // handler. Without a share of the budget it is admitted even when that is used up, as a probe.
  template <class Request, class Response>
  void ServeShort(const char* method,
                  std::function<absl::StatusOr<Response>(const Request&, const CallInfo&)> answer,
                  bool takes_share = true) {
    Serve(method, [this, method, answer = std::move(answer), takes_share](
                      grpc::CallbackServerContext* context, const Bytes* bytes) {
      Request request;
      absl::Status status;
      CallInfo call = DescribeCall(method, *context, core_);
      if (takes_share) status = core_.TakeShare(&call, static_cast<int64_t>(bytes->Length()));
      if (status.ok()) status = ParseShortMessage(*bytes, &request);
      const absl::StatusOr<Response> response = status.ok() ? answer(request, call) : status;
      auto* reactor = new CallReactor(core_, context, std::move(call),
                                      takes_share ? core_.stalls() : core_.probes());
      reactor->Answer(response.status(), response.ok() ? &*response : nullptr);
      return reactor;
    });
  }

  ServerCore& core_;
};

}  // namespace fox
