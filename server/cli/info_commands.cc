// fox-cli health, info, drain, undrain and flush-cache: commands about the server.
#include <unistd.h>

#include <cstdio>

#include "fox/v1/admin.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

// Makes a call of the admin service, then prints `state`, the server's new state, and its load.
template <class Request, class Response>
int Operate(const char* command, const char* state,
            grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
            const std::vector<std::string>& arguments) {
  FlagSet flags;
  Connection connection;
  const std::optional<int> over = connection.Begin(command, arguments, &flags);
  if (over.has_value()) return *over;
  Response response;
  const int code = connection.Ask(*v1::Admin::NewStub(connection.Open()), method, {}, &response);
  if (code != kExitOk) return code;
  std::printf("%s: %llu running, %llu waiting\n", state,
              static_cast<unsigned long long>(response.running()),
              static_cast<unsigned long long>(response.waiting()));
  return kExitOk;
}

// Makes a call of the info service and prints its answer as JSON, indented on a terminal.
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
  const std::optional<int> over = connection.Begin("health [SERVICE]", arguments, &flags, 1);
  if (over.has_value()) return *over;
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  if (!flags.positional().empty()) request.set_service(flags.positional()[0]);
  using Stub = grpc::health::v1::Health::Stub;
  const std::unique_ptr<Stub> stub = grpc::health::v1::Health::NewStub(connection.Open());
  const int code = connection.Ask(*stub, &Stub::Check, request, &response);
  if (code != kExitOk) return code;
  const bool serving = response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  std::printf("%s\n", serving ? "SERVING" : "NOT_SERVING");
  return serving ? kExitOk : kExitFailed;
}

int Info(const std::vector<std::string>& arguments) {
  FlagSet flags;
  Connection connection;
  const std::optional<int> over = connection.Begin("info", arguments, &flags);
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
