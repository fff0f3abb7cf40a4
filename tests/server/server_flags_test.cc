// fox-server's flags: refusals of combinations and lists, and the options that values reach.
#include "server/server_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <numeric>
#include <tuple>

#include "server/served_model_name.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

struct Parsed {
  ServerFlags flags;
  std::string error;
};

// Parses `arguments` and the flag `model`, if it is not null.
Parsed Parse(std::vector<std::string> arguments, const char* model = "--model=m") {
  Parsed out;
  FlagSet set;
  RegisterServerFlags(&out.flags, &set);
  if (model != nullptr) arguments.emplace_back(model);
  absl::Status status = set.Parse(arguments);
  if (status.ok()) status = CompleteServerFlags(&out.flags);
  out.error = std::string(status.message());
  return out;
}
ServerFlags Accepted(const std::vector<std::string>& arguments) {
  Parsed out = Parse(arguments);
  EXPECT_EQ(out.error, "");
  return out.flags;
}

// A flood of connections to one port must not take the descriptors of another.
TEST(ServerFlagsTest, PortsDivideTheDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto connections_with = [&](rlim_t descriptors, const std::vector<std::string>& arguments) {
    const rlimit low{descriptors, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const ServerFlags flags = Accepted(arguments);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    std::vector<int64_t> out = {flags.grpc.listen.max_connections};
    for (const auto& port : {flags.http.listen, flags.metrics.listen}) {
      if (port.port >= 0) out.push_back(port.max_connections);
    }
    if (flags.grpc.admin.has_value()) out.push_back(flags.grpc.admin->max_connections);
    EXPECT_LE(std::accumulate(out.begin(), out.end(), int64_t{0}),
              static_cast<int64_t>(descriptors) - 10);
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
  EXPECT_THAT(connections_with(20000, {"--http-port=0", "--ssl-certfile=c", "--ssl-keyfile=k"}),
              ElementsAre(1024, 1024));
}

TEST(ServerFlagsTest, LoopbackHostsNeedNoConsent) {
  for (const std::string host :
       {"127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "::ffff:127.0.0.1", "127.1"}) {
    EXPECT_EQ(Parse({"--host=" + host}).error, "") << host;
  }
  // A name counts by its address. This one is too long to be resolved.
  const std::string name = "127." + std::string(64, 'a') + ".example";
  for (const std::string& host :
       std::vector<std::string>{"0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1"}) {
    EXPECT_THAT(Parse({"--host=" + host}).error, HasSubstr("--allow-insecure-remote")) << host;
    EXPECT_THAT(Parse({"--admin-address=" + host + ":1"}).error, HasSubstr("--admin-address"))
        << host;
  }
  // If a host has no address, the error says so even if consent is missing, too.
  for (const std::string& host : {name, std::string()}) {
    EXPECT_THAT(Parse({"--host=" + host}).error, HasSubstr("--host: cannot resolve")) << host;
    EXPECT_THAT(Parse({"--host=" + host, "--allow-insecure-remote"}).error,
                HasSubstr("--host: cannot resolve"))
        << host;
    EXPECT_THAT(Parse({"--http-port=0", "--http-host=" + host + "x"}).error,
                HasSubstr("--http-host: cannot resolve"))
        << host;
    EXPECT_THAT(Parse({"--admin-address=" + host + ":1"}).error,
                HasSubstr("--admin-address: cannot resolve"))
        << host;
  }
}

// Cases are arguments and a part of the error; "": they are accepted.
TEST(ServerFlagsTest, RefusalsNameTheFlag) {
  const std::vector<std::string> tls = {"--ssl-certfile=c", "--ssl-keyfile=k"};
  const auto with_tls = [&](std::vector<std::string> more) {
    more.insert(more.end(), tls.begin(), tls.end());
    return more;
  };
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--log-tolerance=nan"}, "--log-tolerance"},
      {{"--log-tolerance=-x"}, "--log-tolerance"},
      {{"--log-tolerance=0"}, "--log-tolerance"},
      {{"--grpc-services=info,magic"}, "--grpc-services"},
      {{"--grpc-services= ,"}, "--grpc-services"},
      {{"--max-model-len=1"}, "--max-model-len"},
      {{"--min-priority=-1"}, "--scheduling-policy"},
      {{"--speculative-config={"}, "--speculative-config"},
      {{R"(--speculative-config={"method": "ngram"})"}, "num_speculative_tokens"},
      {{R"(--speculative-config={"method": "eagle", "num_speculative_tokens": 4})"}, "method"},
      {{R"(--speculative-config={"method": "ngram", "num_speculative_tokens": 15})"}, "tokens"},
      {{R"(--speculative-config={"method": "ngram", "num_speculative_tokens": 4, "model": "m"})"},
       "model"},
      {{"--acp=on"}, "--acp"},
      {{"--dtype=fp8"}, "--dtype"},
      {{"--quantization=int4"}, "--quantization"},
      {{"--kv-cache-dtype=bf16"}, "--kv-cache-dtype"},
      {{"--max-num-seqs=-1"}, "--max-num-seqs"},
      {{"--grpc-prot=1"}, "did you mean --grpc-port?"},
      {{"--http-port=0", "--http-host=0.0.0.0"}, "--http-host"},
      {{"--admin-address=127.0.0.1"}, "--admin-address"},
      {{"--admin-address=127.0.0.1:70000"}, "--admin-address"},
      {{"--api-key-file=k", "--admin-address=main"}, "--admin-key-file"},
      {{"--ssl-certfile=c"}, "--ssl-keyfile"},
      {{"--ssl-keyfile=k"}, "--ssl-certfile"},
      {{"--ssl-ca-certs=a"}, "--ssl-certfile"},
      {with_tls({"--ssl-cert-reqs=required"}), "--ssl-ca-certs"},
      // TLS admits remote hosts whose clients are known.
      {{"--host=0.0.0.0", "--allow-insecure-remote"}, ""},
      {with_tls({"--host=0.0.0.0"}), "--api-key-file"},
      {with_tls({"--host=0.0.0.0", "--ssl-ca-certs=a", "--ssl-cert-reqs=optional"}),
       "--api-key-file"},
      {with_tls({"--host=0.0.0.0", "--api-key-file=f"}), ""},
      {with_tls({"--host=0.0.0.0", "--ssl-ca-certs=a"}), ""},
      {with_tls({"--http-port=0", "--http-host=0.0.0.0"}), "--api-key-file"},
      {with_tls({"--http-port=0", "--http-host=0.0.0.0", "--api-key-file=f"}), ""},
      {with_tls({"--http-port=0", "--http-host=0.0.0.0", "--ssl-ca-certs=a"}), ""},
      // But not to an address where every client is an administrator.
      {with_tls({"--admin-address=0.0.0.0:1"}), "--admin-key-file"},
      {with_tls({"--admin-address=0.0.0.0:1", "--ssl-ca-certs=a", "--ssl-cert-reqs=optional"}),
       "--admin-key-file"},
      {with_tls({"--admin-address=0.0.0.0:1", "--ssl-ca-certs=a"}), ""},
      {with_tls({"--admin-address=0.0.0.0:1", "--admin-key-file=a"}), ""},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string error = Parse(arguments).error;
    EXPECT_TRUE(*expected == 0 ? error.empty() : error.find(expected) != std::string::npos)
        << arguments.front() << ": " << error;
  }
  EXPECT_THAT(Parse({}, nullptr).error, HasSubstr("--model"));
  for (const std::string key : {"X-Tenant", "x-tenant", "X-TENANT"}) {
    EXPECT_EQ(Accepted({"--client-metadata=" + key}).limits.client_metadata, "x-tenant") << key;
  }
  for (const std::string key :
       {"a b", ":path", "x-bin", "X-Bin", "a:", "a\n", "\xc3\xa4", "a,b", "a/"}) {
    EXPECT_THAT(Parse({"--client-metadata=" + key}).error, HasSubstr("--client-metadata")) << key;
  }
}

TEST(ServerFlagsTest, ValuesReachTheirOptions) {
  const ServerFlags flags =
      Accepted({"--grpc-port=0", "--max-message-mb=3", "--log-tolerance=-12.5",
                "--max-connections=9", "--grpc-services=info, health", "--step-timeout=7",
                "--stall-timeout=8", "--max-calls=9", "--call-memory-mb=3", "--http-port=80",
                "--host=::1", "--scheduling-policy=priority", "--min-priority=-5",
                R"(--speculative-config={"method": "ngram", "num_speculative_tokens": 4,
                                         "prompt_lookup_max": 3})"});
  const Speculation& drafts = flags.engine.engine.speculation;
  EXPECT_EQ(drafts.tokens, 4);
  EXPECT_EQ(drafts.lookup_max, 3);
  EXPECT_EQ(drafts.lookup_min, 3);
  EXPECT_EQ(flags.grpc.listen.port, 0);
  EXPECT_EQ(flags.grpc.max_message_mb, 3);
  EXPECT_EQ(flags.grpc.step_timeout, 7);
  EXPECT_EQ(flags.grpc.max_streams, 9);
  EXPECT_EQ(flags.grpc.receive_memory_bytes, 6 << 20);
  EXPECT_EQ(flags.engine.host_bytes_beside, (9 + 128) << 20);
  EXPECT_EQ(flags.grpc.services, (std::set<std::string>{"info", "health"}));
  EXPECT_EQ(flags.engine.log_tolerance, -12.5);
  EXPECT_EQ(flags.engine.model_dir, "m");
  EXPECT_EQ(flags.engine.device, "auto");
  EXPECT_EQ(flags.engine.engine.stall_timeout, 8);
  EXPECT_TRUE(flags.engine.engine.priority_scheduling);
  EXPECT_EQ(flags.engine.engine.min_priority, -5);
  EXPECT_EQ(flags.limits.stall_timeout, 8);
  EXPECT_EQ(flags.limits.max_calls, 9);
  EXPECT_EQ(flags.limits.max_call_bytes, 3 << 20);
  EXPECT_EQ(flags.context.served_model_name, "m");
  // The HTTP port has the limits of the gRPC port.
  EXPECT_EQ(flags.http.listen.port, 80);
  EXPECT_EQ(flags.http.listen.host, "::1");
  EXPECT_EQ(flags.http.listen.max_connections, 9);
  EXPECT_EQ(flags.http.port.max_body_bytes, 3 << 20);
  EXPECT_EQ(flags.http.port.stall_timeout, 8);
  EXPECT_EQ(Accepted({}).http.listen.port, -1);
  EXPECT_EQ(Parse({}, "--check-model=c").flags.engine.model_dir, "c");
}

TEST(ServerFlagsTest, AllowedHostsAreNamesInLowerCaseOfBothHttpPorts) {
  const ServerFlags flags = Accepted({"--allowed-hosts=Fox.example, other,"});
  EXPECT_THAT(flags.http.allowed_hosts, ::testing::ElementsAre("fox.example", "other"));
  EXPECT_THAT(flags.metrics.allowed_hosts, ::testing::ElementsAre("fox.example", "other"));
  EXPECT_TRUE(Accepted({}).http.allowed_hosts.empty());
  EXPECT_THAT(Accepted({"--cors-origins=https://A.example, *"}).http.cors_origins,
              ::testing::ElementsAre("https://a.example", "*"));
  EXPECT_TRUE(Accepted({}).http.cors_origins.empty());
}

TEST(ServerFlagsTest, AdminIsNotOfferedToUnauthenticatedClientsUnlessAFlagSaysSo) {
  const std::pair<std::vector<std::string>, size_t> cases[] = {
      {{}, 1},
      {{"--host=0.0.0.0"}, 0},
      {{"--host=0.0.0.0", "--admin-address=main"}, 1},
      {{"--host=0.0.0.0", "--admin-address=127.0.0.1:99"}, 0},
      // Clients have tokens, and administrators have none.
      {{"--api-key-file=k"}, 0},
      {{"--api-key-file=k", "--admin-key-file=a"}, 1}};
  for (auto [arguments, offered] : cases) {
    arguments.emplace_back("--allow-insecure-remote");
    EXPECT_EQ(Accepted(arguments).grpc.services.count("admin"), offered) << arguments.front();
  }
  const GrpcServerOptions own = Accepted({"--admin-address=127.0.0.1:99"}).grpc;
  EXPECT_EQ(own.admin->host, "127.0.0.1");
  EXPECT_EQ(own.admin->port, 99);
}

TEST(ServerFlagsTest, UnauthenticatedClientsNeedNeitherTokenNorCertificate) {
  using Certificate = ClientCertificate;
  const std::tuple<std::vector<std::string>, bool, Certificate> cases[] = {
      {{}, false, Certificate::kNone},
      {{"--host=0.0.0.0"}, true, Certificate::kNone},
      {{"--http-port=0", "--http-host=0.0.0.0"}, true, Certificate::kNone},
      {{"--http-port=0", "--http-host=0.0.0.0", "--ssl-ca-certs=f"}, false, Certificate::kRequired},
      {{"--host=0.0.0.0", "--api-key-file=f"}, false, Certificate::kNone},
      {{"--host=0.0.0.0", "--ssl-ca-certs=f"}, false, Certificate::kRequired},
      {{"--host=0.0.0.0", "--ssl-ca-certs=f", "--ssl-cert-reqs=optional"},
       true,
       Certificate::kOptional},
      {{"--ssl-ca-certs=f", "--ssl-cert-reqs=none"}, false, Certificate::kNone}};
  for (auto [arguments, unauthenticated, certificate] : cases) {
    arguments.insert(arguments.end(),
                     {"--ssl-certfile=c", "--ssl-keyfile=k", "--allow-insecure-remote"});
    const ServerFlags flags = Accepted(arguments);
    EXPECT_EQ(AllowsUnauthenticated(flags), unauthenticated) << arguments.front();
    EXPECT_EQ(flags.tls.clients, certificate) << arguments.front();
    EXPECT_EQ(flags.tls.authorities.empty(), certificate == Certificate::kNone)
        << arguments.front();
  }
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

TEST(ServerFlagsTest, ThePrefixCachesDirectory) {
  EXPECT_EQ(Accepted({}).engine.prefix_store.dir, "");
  const PrefixStoreConfig store =
      Accepted({"--prefix-cache-dir=d", "--prefix-cache-disk-gb=3"}).engine.prefix_store;
  EXPECT_EQ(store.dir, "d");
  EXPECT_EQ(store.max_gb, 3);
  EXPECT_EQ(Accepted({"--prefix-cache-dir=d"}).engine.prefix_store.max_gb, 32);
  EXPECT_NE(Parse({"--prefix-cache-disk-gb=0"}).error, "");
}

}  // namespace
}  // namespace fox
