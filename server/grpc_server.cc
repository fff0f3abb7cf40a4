// GrpcServer: see grpc_server.h.
#include "server/grpc_server.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/admin_service.h"
#include "server/generate_service.h"
#include "server/health_monitor.h"
#include "server/info_service.h"
#include "server/tokenizer_service.h"

namespace fox {
namespace {

constexpr int kMiB = 1 << 20;
constexpr int kMaxSendMb = 256;
constexpr int kMaxMetadataBytes = 8 << 10;

// The library's plugins are installed for every server of the process; once is enough.
void InstallPlugins(bool health, bool reflection) {
  grpc::EnableDefaultHealthCheckService(health);
  static const bool installed = [reflection] {
    if (reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(installed);
}

void SetChannelArguments(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.max_message_mb * kMiB);
  builder->SetMaxSendMessageSize(kMaxSendMb * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // A client that vanished without closing its connection is noticed after 80 s.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  if (options.max_connection_age_s > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                options.max_connection_age_s * 1000);
  }
  // Two servers on one port would share the calls silently.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

std::string HostForUri(const std::string& host) {
  const bool ipv6 = host.find(':') != std::string::npos && host[0] != '[';
  return ipv6 ? absl::StrCat("[", host, "]") : host;
}

}  // namespace

struct GrpcServer::Impl {
  explicit Impl(ServerCore& server_core) : core(server_core) {}
  std::vector<std::string> Register(const GrpcServerOptions& options, grpc::ServerBuilder* builder);

  ServerCore& core;
  GenerateService generate{core};
  TokenizerService tokenizer{core};
  InfoService info{core};
  AdminService admin{core, [this] {
                       if (monitor != nullptr) monitor->Check();
                     }};
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<HealthMonitor> monitor;
};

// Returns the names for health.
std::vector<std::string> GrpcServer::Impl::Register(const GrpcServerOptions& options,
                                                    grpc::ServerBuilder* builder) {
  std::vector<std::string> names;
  auto add = [&](const char* key, const char* name, grpc::Service* service) {
    if (options.services.count(key) == 0) return;
    builder->RegisterService(service);
    names.push_back(name);
  };
  add("inference", v1::Inference::service_full_name(), &generate);
  add("tokenizer", v1::Tokenizer::service_full_name(), &tokenizer);
  add("info", v1::Info::service_full_name(), &info);
  add("admin", v1::Admin::service_full_name(), &admin);
  return names;
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(ServerCore& core,
                                                              const GrpcServerOptions& options,
                                                              std::function<void()> on_fatal) {
  InstallPlugins(options.services.count("health") > 0, options.services.count("reflection") > 0);
  auto impl = std::make_unique<Impl>(core);
  grpc::ServerBuilder builder;
  SetChannelArguments(options, &builder);
  const std::string address = absl::StrCat(HostForUri(options.host), ":", options.port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &impl->port);
  std::vector<std::string> names = impl->Register(options, &builder);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  }
  impl->monitor =
      std::make_unique<HealthMonitor>(core, impl->server->GetHealthCheckService(), std::move(names),
                                      std::move(on_fatal), options.step_timeout);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::~GrpcServer() { Stop(0); }

int GrpcServer::port() const { return impl_->port; }

void GrpcServer::Drain() {
  impl_->core.Drain();
  impl_->monitor->Check();
}

void GrpcServer::Stop(double grace_seconds, const std::function<bool()>& force) {
  if (impl_->server == nullptr) return;
  using Clock = std::chrono::steady_clock;
  Drain();
  const Clock::time_point deadline =
      Clock::now() +
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_seconds));
  while (!impl_->core.Idle() && Clock::now() < deadline && !(force && force())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  impl_->core.engine.Stop();  // ends every request; their statuses are written below
  // Calls have ended but for their last write; a client that does not read is cut off.
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
  impl_->monitor = nullptr;
  impl_->server = nullptr;
}

}  // namespace fox
