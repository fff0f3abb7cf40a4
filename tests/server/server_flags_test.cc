// fox-server's flags: what is refused beyond single ranges, and where values go.
#include "server/server_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

namespace fox {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& arguments, ServerFlags* flags) {
  FlagSet set;
  RegisterServerFlags(flags, &set);
  absl::Status status = set.Parse(arguments, nullptr);
  if (status.ok()) status = CompleteServerFlags(flags);
  return std::string(status.message());
}

// No flood of one port may take the descriptors of another.
TEST(ServerFlagsTest, PortsDivideTheDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto connections_with = [&](rlim_t descriptors, std::vector<std::string> arguments) {
    const rlimit low{descriptors, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    arguments.push_back("--model=m");
    ServerFlags flags;
    EXPECT_EQ(ErrorOf(arguments, &flags), "");
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    std::vector<int64_t> out = {flags.grpc.listen.max_connections};
    if (flags.http.listen.port >= 0) out.push_back(flags.http.listen.max_connections);
    if (flags.metrics.port >= 0) out.push_back(flags.metrics.max_connections);
    if (flags.grpc.admin.has_value()) out.push_back(flags.grpc.admin->max_connections);
    int64_t sum = 0;
    for (const int64_t one : out) sum += one;
    EXPECT_LE(sum, static_cast<int64_t>(descriptors) - 10);
    return out;
  };
  using ::testing::ElementsAre;
  const std::vector<std::string> all = {"--http-port=0", "--metrics-port=0",
                                        "--admin-address=127.0.0.1:0"};
  EXPECT_THAT(connections_with(1024, {}), ElementsAre(960));
  EXPECT_THAT(connections_with(1024, {"--http-port=0"}), ElementsAre(480, 480));
  EXPECT_THAT(connections_with(1024, all), ElementsAre(434, 434, 60, 32));
  EXPECT_THAT(connections_with(40, all), ElementsAre(14, 14, 1, 1));
  EXPECT_THAT(connections_with(1024, {"--http-port=0", "--max-connections=100"}),
              ElementsAre(100, 100));
  EXPECT_THAT(connections_with(1024, {"--max-connections=100000"}), ElementsAre(960));
  if (before.rlim_max < 20000) GTEST_SKIP() << "few descriptors";
  EXPECT_THAT(connections_with(20000, all), ElementsAre(8192, 8192, 256, 32));
  EXPECT_THAT(connections_with(20000, {"--ssl-certfile=c", "--ssl-keyfile=k"}), ElementsAre(1024));
}

TEST(ServerFlagsTest, RemoteHostsNeedConsent) {
  for (const char* host :
       {"127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "::ffff:127.0.0.1", "127.1"}) {
    ServerFlags flags;
    EXPECT_EQ(ErrorOf({"--model=m", std::string("--host=") + host}, &flags), "") << host;
  }
  // A name is judged by what it stands for; this one is too long to be asked for.
  const std::string name = "127." + std::string(64, 'a') + ".example";
  for (const std::string& host :
       {std::string("0.0.0.0"), std::string("::"), std::string("10.0.0.1"),
        std::string("::ffff:10.0.0.1"), std::string(), name}) {
    ServerFlags flags;
    EXPECT_THAT(ErrorOf({"--model=m", "--host=" + host}, &flags),
                HasSubstr("--allow-insecure-remote"))
        << host;
    ServerFlags admin;
    EXPECT_THAT(ErrorOf({"--model=m", "--admin-address=" + host + ":1"}, &admin),
                HasSubstr("--admin-address"))
        << host;
  }
  ServerFlags flags;
  EXPECT_EQ(ErrorOf({"--model=m", "--host=0.0.0.0", "--allow-insecure-remote"}, &flags), "");
}

TEST(ServerFlagsTest, ClientMetadataIsTheNameOfAHeader) {
  for (const char* key : {"X-Tenant", "x-tenant", "X-TENANT"}) {
    ServerFlags flags;
    EXPECT_EQ(ErrorOf({"--model=m", std::string("--client-metadata=") + key}, &flags), "");
    EXPECT_EQ(flags.limits.client_metadata, "x-tenant");
  }
  for (const char* key : {"a b", ":path", "x-bin", "X-Bin", "a:", "a\n", "\xc3\xa4", "a,b", "a/"}) {
    ServerFlags flags;
    EXPECT_THAT(ErrorOf({"--model=m", std::string("--client-metadata=") + key}, &flags),
                HasSubstr("--client-metadata"))
        << key;
  }
}

TEST(ServerFlagsTest, RefusalsNameTheFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "--model"},
      {{"--model=m", "--log-tolerance=nan"}, "--log-tolerance"},
      {{"--model=m", "--log-tolerance=-x"}, "--log-tolerance"},
      {{"--model=m", "--grpc-services=info,magic"}, "--grpc-services"},
      {{"--model=m", "--log-tolerance=0"}, "--log-tolerance"},
      {{"--model=m", "--grpc-services= ,"}, "--grpc-services"},
      {{"--model=m", "--max-model-len=1"}, "--max-model-len"},
      {{"--model=m", "--min-priority=-1"}, "--scheduling-policy"},
      {{"--model=m", "--admin-address=127.0.0.1"}, "--admin-address"},
      {{"--model=m", "--admin-address=127.0.0.1:70000"}, "--admin-address"},
      {{"--model=m", "--acp=on"}, "--acp"},
      {{"--model=m", "--ssl-certfile=c"}, "--ssl-keyfile"},
      {{"--model=m", "--ssl-keyfile=k"}, "--ssl-certfile"},
      {{"--model=m", "--ssl-ca-certs=a"}, "--ssl-certfile"},
      {{"--model=m", "--ssl-certfile=c", "--ssl-keyfile=k", "--ssl-cert-reqs=required"},
       "--ssl-ca-certs"},
      {{"--model=m", "--dtype=fp8"}, "--dtype"},
      {{"--model=m", "--max-num-seqs=-1"}, "--max-num-seqs"},
      {{"--model=m", "--grpc-prot=1"}, "did you mean --grpc-port?"},
  };
  for (const auto& [arguments, expected] : cases) {
    ServerFlags flags;
    EXPECT_THAT(ErrorOf(arguments, &flags), HasSubstr(expected));
  }
}

TEST(ServerFlagsTest, ValuesReachTheirOptions) {
  ServerFlags flags;
  ASSERT_EQ(ErrorOf({"--model=m", "--grpc-port=0", "--max-message-mb=3", "--log-tolerance=-12.5",
                     "--grpc-services=info, health", "--step-timeout=7"},
                    &flags),
            "");
  EXPECT_EQ(flags.grpc.listen.port, 0);
  EXPECT_EQ(flags.grpc.max_message_mb, 3);
  EXPECT_EQ(flags.grpc.step_timeout, 7);
  EXPECT_EQ(flags.engine.log_tolerance, -12.5);
  EXPECT_EQ(flags.grpc.services, (std::set<std::string>{"info", "health"}));
  EXPECT_EQ(flags.context.served_model_name, "m");
  EXPECT_EQ(flags.engine.model_dir, "m");
  EXPECT_EQ(flags.engine.device, "auto");
}

TEST(ServerFlagsTest, TheHttpPortHasTheLimitsOfTheOther) {
  ServerFlags off;
  ASSERT_EQ(ErrorOf({"--model=m"}, &off), "");
  EXPECT_EQ(off.http.listen.port, -1);
  ServerFlags on;
  ASSERT_EQ(ErrorOf({"--model=m", "--http-port=80", "--host=::1", "--max-message-mb=3",
                     "--max-connections=9", "--stall-timeout=7"},
                    &on),
            "");
  EXPECT_EQ(on.http.listen.port, 80);
  EXPECT_EQ(on.http.listen.host, "::1");
  EXPECT_EQ(on.http.listen.max_connections, 9);
  EXPECT_EQ(on.http.port.max_body_bytes, 3 << 20);
  EXPECT_EQ(on.http.port.stall_timeout, 7);
  ServerFlags remote;
  EXPECT_THAT(ErrorOf({"--model=m", "--http-port=0", "--http-host=0.0.0.0"}, &remote),
              HasSubstr("--http-host"));
}

TEST(ServerFlagsTest, WithTlsAllPortsHaveFewerConnections) {
  ServerFlags flags;
  ASSERT_EQ(ErrorOf({"--model=m", "--http-port=0", "--ssl-certfile=c", "--ssl-keyfile=k"}, &flags),
            "");
  EXPECT_LE(flags.grpc.listen.max_connections, 1024);  // or what the descriptors allow
  EXPECT_LE(flags.http.listen.max_connections, 1024);
}

TEST(ServerFlagsTest, WhatFollowsFromSeveralFlags) {
  ServerFlags flags;
  ASSERT_EQ(ErrorOf({"--check-model=m", "--stall-timeout=7", "--max-calls=9", "--call-memory-mb=3",
                     "--scheduling-policy=priority", "--min-priority=-5"},
                    &flags),
            "");
  EXPECT_EQ(flags.engine.engine.stall_timeout, 7);
  EXPECT_EQ(flags.limits.stall_timeout, 7);
  EXPECT_EQ(flags.limits.max_calls, 9);
  EXPECT_EQ(flags.grpc.max_streams, 9);
  EXPECT_EQ(flags.limits.max_call_bytes, 3 << 20);
  EXPECT_EQ(flags.grpc.receive_memory_bytes, 6 << 20);
  EXPECT_TRUE(flags.engine.engine.priority_scheduling);
  EXPECT_EQ(flags.engine.engine.min_priority, -5);
}

TEST(ServerFlagsTest, AdminIsNotWhereStrangersAreUnlessThatIsSaid) {
  const auto options_of = [](std::vector<std::string> arguments) {
    ServerFlags flags;
    arguments.insert(arguments.end(), {"--model=m", "--allow-insecure-remote"});
    EXPECT_EQ(ErrorOf(arguments, &flags), "");
    return flags.grpc;
  };
  EXPECT_EQ(options_of({}).services.count("admin"), 1u);
  EXPECT_EQ(options_of({"--host=0.0.0.0"}).services.count("admin"), 0u);
  EXPECT_EQ(options_of({"--host=0.0.0.0", "--admin-address=main"}).services.count("admin"), 1u);
  const GrpcServerOptions own = options_of({"--host=0.0.0.0", "--admin-address=127.0.0.1:99"});
  EXPECT_EQ(own.services.count("admin"), 0u);
  EXPECT_EQ(own.admin->host, "127.0.0.1");
  EXPECT_EQ(own.admin->port, 99);
  // Nor where clients have tokens and administrators have none.
  EXPECT_EQ(options_of({"--api-key-file=k"}).services.count("admin"), 0u);
  EXPECT_EQ(options_of({"--api-key-file=k", "--admin-key-file=a"}).services.count("admin"), 1u);
}

TEST(ServerFlagsTest, TlsLetsRemoteHostsInThatAreKnown) {
  const std::vector<std::string> tls = {"--model=m", "--ssl-certfile=c", "--ssl-keyfile=k"};
  const auto error_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = tls;
    arguments.insert(arguments.end(), more.begin(), more.end());
    ServerFlags flags;
    return ErrorOf(arguments, &flags);
  };
  EXPECT_THAT(error_of({"--host=0.0.0.0"}), HasSubstr("--api-key-file"));
  EXPECT_THAT(error_of({"--host=0.0.0.0", "--ssl-ca-certs=a", "--ssl-cert-reqs=optional"}),
              HasSubstr("--api-key-file"));
  EXPECT_EQ(error_of({"--host=0.0.0.0", "--api-key-file=f"}), "");
  EXPECT_EQ(error_of({"--host=0.0.0.0", "--ssl-ca-certs=a"}), "");
  EXPECT_EQ(error_of({"--host=0.0.0.0", "--allow-insecure-remote"}), "");
  const std::vector<std::string> http = {"--http-port=0", "--http-host=0.0.0.0"};
  const auto http_error_of = [&](const std::string& more) {
    return error_of({http[0], http[1], more});
  };
  EXPECT_THAT(http_error_of("--device=cpu"), HasSubstr("--api-key-file"));
  EXPECT_EQ(http_error_of("--api-key-file=f"), "");
  EXPECT_EQ(http_error_of("--ssl-ca-certs=a"), "");
  // But not strangers to an address where every client is an administrator.
  EXPECT_THAT(error_of({"--admin-address=0.0.0.0:1"}), HasSubstr("--admin-key-file"));
  EXPECT_THAT(
      error_of({"--admin-address=0.0.0.0:1", "--ssl-ca-certs=a", "--ssl-cert-reqs=optional"}),
      HasSubstr("--admin-key-file"));
  EXPECT_EQ(error_of({"--admin-address=0.0.0.0:1", "--ssl-ca-certs=a"}), "");
  EXPECT_EQ(error_of({"--admin-address=0.0.0.0:1", "--admin-key-file=a"}), "");
  EXPECT_THAT(error_of({"--api-key-file=k", "--admin-address=main"}),
              HasSubstr("--admin-key-file"));
}

TEST(ServerFlagsTest, StrangersAreThoseWhomNothingKeepsOut) {
  const auto strangers_with = [](std::vector<std::string> arguments) {
    ServerFlags flags;
    arguments.insert(arguments.end(), {"--model=m", "--ssl-certfile=c", "--ssl-keyfile=k",
                                       "--allow-insecure-remote"});
    EXPECT_EQ(ErrorOf(arguments, &flags), "");
    return StrangersMayCall(flags);
  };
  EXPECT_FALSE(strangers_with({}));
  EXPECT_TRUE(strangers_with({"--host=0.0.0.0"}));
  EXPECT_TRUE(strangers_with({"--http-port=0", "--http-host=0.0.0.0"}));
  EXPECT_FALSE(strangers_with({"--http-port=0", "--http-host=0.0.0.0", "--ssl-ca-certs=f"}));
  EXPECT_FALSE(strangers_with({"--host=0.0.0.0", "--api-key-file=f"}));
  EXPECT_FALSE(strangers_with({"--host=0.0.0.0", "--ssl-ca-certs=f"}));
  EXPECT_TRUE(strangers_with({"--host=0.0.0.0", "--ssl-ca-certs=f", "--ssl-cert-reqs=optional"}));
}

TEST(ServerFlagsTest, ClientCertificatesAreRequiredWhereAuthoritiesAreGiven) {
  const auto clients_of = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--model=m", "--ssl-certfile=c", "--ssl-keyfile=k"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ServerFlags flags;
    EXPECT_EQ(ErrorOf(arguments, &flags), "");
    EXPECT_EQ(flags.tls.authorities.empty(), flags.tls.clients == ClientCertificate::kNone);
    return flags.tls.clients;
  };
  EXPECT_EQ(clients_of({}), ClientCertificate::kNone);
  EXPECT_EQ(clients_of({"--ssl-ca-certs=a"}), ClientCertificate::kRequired);
  EXPECT_EQ(clients_of({"--ssl-ca-certs=a", "--ssl-cert-reqs=optional"}),
            ClientCertificate::kOptional);
  EXPECT_EQ(clients_of({"--ssl-ca-certs=a", "--ssl-cert-reqs=none"}), ClientCertificate::kNone);
}

TEST(ServerFlagsTest, AModelIsNamedByItsDirectory) {
  const std::string here = std::filesystem::current_path().filename();
  EXPECT_EQ(ServedModelName("", "/models/fox-7b/").value(), "fox-7b");
  EXPECT_EQ(ServedModelName("", "a/../b").value(), "b");
  EXPECT_EQ(ServedModelName("", ".").value(), here);
  EXPECT_EQ(ServedModelName("", "./").value(), here);
  EXPECT_EQ(ServedModelName("", "/h/models--fla-hub--fox/snapshots/01ab/").value(), "fla-hub/fox");
  EXPECT_FALSE(ServedModelName("", "/").ok());
  EXPECT_FALSE(ServedModelName("", "/models/a\nb").ok());
  EXPECT_EQ(ServedModelName("f\xc3\xb6x", "/").value(), "f\xc3\xb6x");
  for (const std::string& name :
       {std::string("a\nb"), std::string("a\xff"), std::string(257, 'a'), std::string("\x7f")}) {
    EXPECT_FALSE(ServedModelName(name, "m").ok()) << name;
  }
}

}  // namespace
}  // namespace fox
