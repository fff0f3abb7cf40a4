// GrpcServer: channel settings, start, and drained stop. See grpc_server.h.
#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/steady_clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "kernels/core/check.h"
#include "server/rpc/health_monitor.h"
#include "server/rpc/health_service.h"
#include "server/rpc/port_check.h"
#include "server/rpc/port_credentials.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

constexpr int kMiB = 1 << 20;
constexpr int kMaxSendMb = 256;
constexpr int kMaxMetadataBytes = 8 << 10;
constexpr int kHandshakeTimeoutMs = 10000;
constexpr int kPollMs = 100;
constexpr int kMaxBlockingThreads = 16;
constexpr double kEngineStopSeconds = 0.4;
constexpr std::chrono::milliseconds kLastWrites(350);
constexpr double kHangUpSeconds = 0.05;

// Reflection registers itself with every server of a process that links it; this takes it back.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const auto reflects = [](const auto& p) { return p->name() == "proto_server_reflection"; };
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(), reflects), plugins->end());
  }
};

// Bounds the library's memory for messages that have not arrived whole, beyond which it cancels
// calls; and its blocking threads, which serve reflection and unknown methods, one a stream: more
// streams are refused with RESOURCE_EXHAUSTED.
void BoundResources(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  using Option = grpc::ServerBuilder;
  builder->SetSyncServerOption(Option::NUM_CQS, 1);
  builder->SetSyncServerOption(Option::MIN_POLLERS, 1);
  builder->SetSyncServerOption(Option::MAX_POLLERS, 1);
  builder->SetSyncServerOption(Option::CQ_TIMEOUT_MSEC, kPollMs);  // a stop waits for one
  grpc::ResourceQuota quota;
  quota.Resize(static_cast<size_t>(options.receive_memory_bytes));
  quota.SetMaxThreads(kMaxBlockingThreads);
  builder->SetResourceQuota(quota);
}

void SetChannelArguments(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  // A compressed message of 5 MiB may hold 5 GiB, and the library's limit counts them afterwards.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetMaxReceiveMessageSize(options.max_message_mb * kMiB);
  builder->SetMaxSendMessageSize(kMaxSendMb * kMiB);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // One connection may have as many calls as all may have together: clients share connections.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  // A client that vanished without closing its connection is noticed after 80 s.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  // Also a client whose call waits in the queue, where nothing is sent for minutes.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (options.max_connection_age_s > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                options.max_connection_age_s * 1000);
  }
  if (options.max_connection_idle_s > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                                options.max_connection_idle_s * 1000);
  }
}

// Opens a port of the library without a socket. Returns the function that takes connections over.
ConnectionAcceptor::Sink AddPort(const GrpcServerOptions& options, std::shared_ptr<Access> access,
                                 std::shared_ptr<PublicCallLimit> limit,
                                 grpc::ServerBuilder* builder) {
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> port =
      builder->experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          PortCredentials(options.tls, std::move(access), std::move(limit)));
  return [port](int listener, int descriptor) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = descriptor;
    port->HandleNewConnection(&connection);
  };
}

}  // namespace

struct GrpcServer::Impl {
  Impl(ServerCore& server_core, const GrpcServerOptions& options)
      : core(server_core),
        info(core, !options.admin.has_value() && options.services.count("admin") > 0 &&
                       !core.access->needs_user_token() && !core.access->needs_admin_token()) {}
  std::vector<std::string> Register(const GrpcServerOptions& options, grpc::ServerBuilder* builder);
  absl::Status StartAdmin(const GrpcServerOptions& options);

  ServerCore& core;
  GenerateService generate{core};
  TokenizerService tokenizer{core};
  InfoService info, admin_info{core, !core.access->needs_admin_token()};
  AdminService admin{core, [this] { monitor->Check(); }};
  std::shared_ptr<PublicCallLimit> limit =
      std::make_shared<PublicCallLimit>(core.client_metadata());
  HealthService health{core, limit};
  GrpcListeners listeners;
  std::unique_ptr<grpc::Server> server, admin_server;
  std::unique_ptr<HealthMonitor> monitor;  // from before the first call until after the last one
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
  if (!options.admin.has_value()) add("admin", v1::Admin::service_full_name(), &admin);
  if (options.services.count("health") > 0) builder->RegisterService(&health);
  return names;
}

absl::Status GrpcServer::Impl::StartAdmin(const GrpcServerOptions& options) {
  if (listeners.admin == nullptr) return absl::OkStatus();
  grpc::ServerBuilder builder;
  SetChannelArguments(options, &builder);
  builder.SetOption(std::make_unique<WithoutReflection>());
  builder.RegisterService(&admin);
  builder.RegisterService(&admin_info);
  // Without tokens of its own, a client that reaches this address is an administrator.
  auto sink =
      AddPort(options, core.access->needs_admin_token() ? core.access : nullptr, limit, &builder);
  admin_server = builder.BuildAndStart();
  if (admin_server == nullptr) return absl::UnavailableError("gRPC does not start");
  listeners.admin->Start(std::move(sink));
  return absl::OkStatus();
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<GrpcListeners> GrpcServer::Listen(const GrpcServerOptions& options) {
  GrpcListeners out;
  auto main = ConnectionAcceptor::Listen(options.listen);
  if (!main.ok()) return main.status();
  out.main = *std::move(main);
  if (!options.admin.has_value()) return out;
  auto admin = ConnectionAcceptor::Listen(*options.admin);
  if (!admin.ok()) {
    return absl::UnavailableError(absl::StrCat("--admin-address: ", admin.status().message()));
  }
  out.admin = *std::move(admin);
  return out;
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(ServerCore& core,
                                                              const GrpcServerOptions& options,
                                                              std::function<void()> on_fatal,
                                                              GrpcListeners listeners) {
  auto impl = std::make_unique<Impl>(core, options);
  if (listeners.main == nullptr) {
    absl::StatusOr<GrpcListeners> listening = Listen(options);
    if (!listening.ok()) return listening.status();
    listeners = *std::move(listening);
  }
  impl->listeners = std::move(listeners);
  FOX_CHECK(impl->listeners.main != nullptr);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();  // linking it does so, or not
  grpc::ServerBuilder builder;
  SetChannelArguments(options, &builder);
  BoundResources(options, &builder);
  if (options.services.count("reflection") == 0) {
    builder.SetOption(std::make_unique<WithoutReflection>());
  }
  auto sink = AddPort(options, core.access, impl->limit, &builder);
  const std::vector<std::string> names = impl->Register(options, &builder);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) return absl::UnavailableError("gRPC does not start");
  impl->monitor = std::make_unique<HealthMonitor>(core, &impl->health, names, std::move(on_fatal),
                                                  options.step_timeout,
                                                  [&core] { return core.delivery().StuckFor(); });
  absl::Status status = CheckPort(sink);
  if (status.ok()) status = impl->StartAdmin(options);
  if (!status.ok()) return status;
  impl->listeners.main->Start(std::move(sink));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::~GrpcServer() { Stop(0); }

int GrpcServer::port() const { return impl_->listeners.main->port(); }

bool GrpcServer::serving() const { return impl_->monitor != nullptr && impl_->monitor->serving(); }

int GrpcServer::admin_port() const {
  return impl_->listeners.admin == nullptr ? 0 : impl_->listeners.admin->port();
}

void GrpcServer::Drain() {
  impl_->core.Drain();
  impl_->monitor->Check();
}

bool GrpcServer::Stop(double grace_seconds, const std::function<bool()>& force) {
  if (impl_->server == nullptr) return true;
  using Clock = std::chrono::steady_clock;
  impl_->core.ShutDown();
  impl_->monitor->Check();
  const Clock::time_point deadline = Clock::now() + SteadyDuration(grace_seconds);
  impl_->core.engine.SavePrefixCache();
  const auto busy = [this] {
    const EngineThread& engine = impl_->core.engine;
    return !impl_->core.Idle() || (engine.stats().snapshots_unsaved > 0 && engine.fatal().ok());
  };
  while (busy() && Clock::now() < deadline && !(force && force())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Ends every request; their statuses are written below.
  const bool ended = impl_->core.engine.Stop(kEngineStopSeconds);
  if (!ended) AbandonCalls(impl_->core, absl::UnavailableError("the server is stopping"));
  impl_->listeners.main->Stop();
  if (impl_->listeners.admin != nullptr) impl_->listeners.admin->Stop();
  // Calls have ended but for their last write; a client that does not read is cut off.
  const Clock::time_point cut_off = Clock::now() + kLastWrites;
  while (impl_->core.calls().calls() > 0 && Clock::now() < cut_off) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The library would end calls that come from now on with CANCELLED, which clients do not repeat.
  impl_->listeners.main->HangUp(kHangUpSeconds);
  if (impl_->admin_server != nullptr)
    impl_->admin_server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
  impl_->monitor->Stop();
  impl_->server = nullptr;
  impl_->admin_server = nullptr;
  return ended;
}

}  // namespace fox
