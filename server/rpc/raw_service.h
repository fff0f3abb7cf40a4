// RawService: a fox.v1 service whose methods are given by name, each with the code that serves it.
// Messages come and go as bytes (wire.h says why).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "kernels/core/check.h"
#include "server/rpc/grpc_transport.h"

namespace fox {

// Makes the format of one call, which takes the client's message.
using FormatFactory = std::unique_ptr<Format> (*)(grpc::ByteBuffer message,
                                                  const ConversionContext& context);

template <class FormatOfMethod>
std::unique_ptr<Format> MakeFormat(grpc::ByteBuffer message, const ConversionContext& context) {
  return std::make_unique<FormatOfMethod>(std::move(message), context);
}

// `Definition` is the generated class, such as v1::Info.
template <class Definition>
class RawService : public Definition::Service {
 protected:
  using Bytes = grpc::ByteBuffer;

  // `core` must outlive the server that the service is registered with.
  explicit RawService(ServerCore& core) : core_(core) {}

  // Serves `method` with a Call. A method is named as the log calls it: NAME or SERVICE.NAME.
  void ServeCall(const char* method, Call::Work work, FormatFactory make_format) {
    Register(method, [this, method, work, make_format](grpc::CallbackServerContext* context,
                                                       const Bytes* message) {
      CallInfo info = DescribeCall(method, *context, core_);
      auto* transport = new GrpcTransport(context, core_.stalls(), info.client);
      const auto bytes = static_cast<int64_t>(message->Length());
      transport->StartCall(core_, std::move(info), work,
                           make_format(TakeBytes(message), core_.context), bytes);
      return transport;
    });
  }

  // A method whose message is small and whose answer takes no time: all of it happens in the
  // handler. Without a share of the budget it is admitted even when that is used up, as a probe.
  template <class Request, class Response>
  void ServeShort(const char* method,
                  std::function<absl::StatusOr<Response>(const Request&, const CallInfo&)> answer,
                  bool takes_share = true) {
    Register(method, [this, method, answer = std::move(answer), takes_share](
                         grpc::CallbackServerContext* context, const Bytes* bytes) {
      Request request;
      absl::Status status;
      CallInfo call = DescribeCall(method, *context, core_);
      if (takes_share) status = core_.AdmitShort(&call, static_cast<int64_t>(bytes->Length()));
      if (status.ok()) status = ParseShortMessage(*bytes, &request);
      const absl::StatusOr<Response> response = status.ok() ? answer(request, call) : status;
      auto* transport =
          new GrpcTransport(context, takes_share ? core_.stalls() : core_.probes(), call.client);
      transport->AnswerNow(core_, std::move(call), response.status(),
                           response.ok() ? response->SerializeAsString() : "");
      return transport;
    });
  }

  ServerCore& core_;

 private:
  // Works as the generated WithRawCallbackMethod_NAME, for a method of any kind. `handler`
  // makes the reactor of a call; it runs on gRPC's thread and must not block.
  template <class Handler>
  void Register(const std::string& method, Handler handler) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        Definition::service_full_name());
    FOX_CHECK(service != nullptr);
    const auto* const found = service->FindMethodByName(method.substr(method.rfind('.') + 1));
    FOX_CHECK(found != nullptr);
    this->MarkMethodRawCallback(
        found->index(),
        new grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>(std::move(handler)));
  }
};

}  // namespace fox
