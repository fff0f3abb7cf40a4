// fox-cli health, info, drain and undrain: about the server, not about a text.
#include <unistd.h>

#include <cstdio>

#include "fox/v1/admin.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/cli/commands.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

// grpc.health.v1 is not among our messages: a HealthCheckRequest is one string in field 1 and its
// response one enum in field 1, which two well-known wrappers spell the same way.
grpc::Status CheckHealth(const Connection& connection, grpc::ClientContext* context,
                         const std::string& service, int* serving_status) {
  google::protobuf::StringValue request;
  request.set_value(service);
  const std::string bytes = request.SerializeAsString();
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(connection.Open());
  auto call = stub.PrepareUnaryCall(context, "/grpc.health.v1.Health/Check", message, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice flat;
  google::protobuf::Int32Value value;
  if (status.ok() && response.DumpToSingleSlice(&flat).ok()) {
    value.ParseFromArray(flat.begin(), static_cast<int>(flat.size()));
  }
  *serving_status = value.value();
  return status;
}

// One call of the admin service; `state` is what the server is in then.
template <class Request, class Response>
int Operate(const char* command, const char* state,
            grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
            const std::vector<std::string>& arguments) {
  FlagSet flags;
  Connection connection;
  const std::optional<int> over = connection.Begin(command, arguments, &flags, /*most=*/0);
  if (over.has_value()) return *over;
  Response response;
  const int code = connection.Ask(*v1::Admin::NewStub(connection.Open()), method, {}, &response);
  if (code != kExitOk) return code;
  std::printf("%s: %llu running, %llu waiting\n", state,
              static_cast<unsigned long long>(response.running()),
              static_cast<unsigned long long>(response.waiting()));
  return kExitOk;
}

// One call of the info service, and its answer as JSON: a line, on a terminal indented.
template <class Request, class Response>
int Show(const Connection& connection, v1::Info::Stub& stub,
         grpc::Status (v1::Info::Stub::*method)(grpc::ClientContext*, const Request&, Response*)) {
  Response response;
  const int code = connection.Ask(stub, method, {}, &response);
  if (code == kExitOk) PrintJson(response, isatty(STDOUT_FILENO) != 0);
  return code;
}

}  // namespace

int Health(const std::vector<std::string>& arguments) {
  FlagSet flags;
  Connection connection;
  connection.timeout_s = 5;
  const std::optional<int> over = connection.Begin("health [SERVICE]", arguments, &flags);
  if (over.has_value()) return *over;
  int serving_status = 0;
  std::unique_ptr<grpc::ClientContext> context = connection.Call();
  const std::string service = flags.positional().empty() ? "" : flags.positional()[0];
  const grpc::Status status = CheckHealth(connection, context.get(), service, &serving_status);
  if (!status.ok()) return Report(status, *context);
  const bool serving = serving_status == 1;
  std::printf("%s\n", serving ? "SERVING" : "NOT_SERVING");
  return serving ? kExitOk : kExitFailed;
}

int Info(const std::vector<std::string>& arguments) {
  FlagSet flags;
  Connection connection;
  const std::optional<int> over = connection.Begin("info", arguments, &flags, /*most=*/0);
  if (over.has_value()) return *over;
  const std::unique_ptr<v1::Info::Stub> stub = v1::Info::NewStub(connection.Open());
  int code = Show(connection, *stub, &v1::Info::Stub::GetServerInfo);
  if (code == kExitOk) code = Show(connection, *stub, &v1::Info::Stub::GetModelInfo);
  if (code == kExitOk) code = Show(connection, *stub, &v1::Info::Stub::GetLoad);
  return code;
}

int Drain(const std::vector<std::string>& arguments) {
  return Operate("drain", "draining", &v1::Admin::Stub::Drain, arguments);
}

int FlushCache(const std::vector<std::string>& arguments) {
  return Operate("flush-cache", "flushed", &v1::Admin::Stub::FlushCache, arguments);
}

int Undrain(const std::vector<std::string>& arguments) {
  return Operate("undrain", "serving", &v1::Admin::Stub::Undrain, arguments);
}

}  // namespace fox::cli
