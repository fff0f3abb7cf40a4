// fox-cli health, info, drain and undrain: about the server, not about a text.
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

// Parses the flags all of them have. Returns true when the command is to run.
bool Prepare(const char* usage, size_t most_arguments, const std::vector<std::string>& arguments,
             Connection* connection, std::string* argument, int* exit_code) {
  FlagSet set;
  bool help = false;
  connection->Register(&set);
  set.Action("help", "print this and exit", &help);
  const absl::Status status = connection->Parse(arguments, &set);
  if (!status.ok()) {
    *exit_code = UsageError(std::string(status.message()));
    return false;
  }
  if (help) {
    std::printf("usage: fox-cli %s [flags]\n\n%s", usage, set.Help().c_str());
    *exit_code = kExitOk;
    return false;
  }
  if (set.positional().size() > most_arguments) {
    *exit_code = UsageError("unexpected argument " + set.positional().back().substr(0, 64));
    return false;
  }
  if (!set.positional().empty()) *argument = set.positional()[0];
  return true;
}

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
  Connection connection;
  std::string unused;
  int exit_code = 0;
  if (!Prepare(command, 0, arguments, &connection, &unused, &exit_code)) return exit_code;
  Response response;
  std::unique_ptr<grpc::ClientContext> context = connection.Call();
  std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(connection.Open());
  const grpc::Status status = (stub.get()->*method)(context.get(), {}, &response);
  if (!status.ok()) return Report(status, *context);
  std::printf("%s: %llu running, %llu waiting\n", state,
              static_cast<unsigned long long>(response.running()),
              static_cast<unsigned long long>(response.waiting()));
  return kExitOk;
}

}  // namespace

int Health(const std::vector<std::string>& arguments) {
  Connection connection;
  connection.timeout_s = 5;
  std::string service;
  int exit_code = 0;
  if (!Prepare("health [SERVICE]", 1, arguments, &connection, &service, &exit_code)) {
    return exit_code;
  }
  int serving_status = 0;
  std::unique_ptr<grpc::ClientContext> context = connection.Call();
  const grpc::Status status = CheckHealth(connection, context.get(), service, &serving_status);
  if (!status.ok()) return Report(status, *context);
  const bool serving = serving_status == 1;
  std::printf("%s\n", serving ? "SERVING" : "NOT_SERVING");
  return serving ? kExitOk : kExitFailed;
}

int Info(const std::vector<std::string>& arguments) {
  Connection connection;
  std::string unused;
  int exit_code = 0;
  if (!Prepare("info", 0, arguments, &connection, &unused, &exit_code)) return exit_code;
  std::unique_ptr<v1::Info::Stub> stub = v1::Info::NewStub(connection.Open());
  v1::ServerInfo server;
  std::unique_ptr<grpc::ClientContext> context = connection.Call();
  grpc::Status status = stub->GetServerInfo(context.get(), {}, &server);
  if (!status.ok()) return Report(status, *context);
  PrintJson(server);
  v1::ModelInfo model;
  context = connection.Call();
  status = stub->GetModelInfo(context.get(), {}, &model);
  if (!status.ok()) return Report(status, *context);
  PrintJson(model);
  v1::Load load;
  context = connection.Call();
  status = stub->GetLoad(context.get(), {}, &load);
  if (!status.ok()) return Report(status, *context);
  PrintJson(load);
  return kExitOk;
}

int Drain(const std::vector<std::string>& arguments) {
  return Operate<v1::DrainRequest, v1::DrainResponse>("drain", "draining", &v1::Admin::Stub::Drain,
                                                      arguments);
}

int Undrain(const std::vector<std::string>& arguments) {
  return Operate<v1::UndrainRequest, v1::UndrainResponse>("undrain", "serving",
                                                          &v1::Admin::Stub::Undrain, arguments);
}

}  // namespace fox::cli
