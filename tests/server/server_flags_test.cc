// fox-server's flags: what is refused beyond single ranges, and where values go.
#include "server/server_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
      {{"--model=m", "--dtype=fp8"}, "--dtype"},
      {{"--model=m", "--max-num-seqs=0"}, "--max-num-seqs"},
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
  EXPECT_EQ(own.admin_address, "127.0.0.1:99");
}

TEST(ServerFlagsTest, AModelIsNamedByItsDirectory) {
  const std::string here = std::filesystem::current_path().filename();
  EXPECT_EQ(ServedModelName("", "/models/fox-7b/").value(), "fox-7b");
  EXPECT_EQ(ServedModelName("", "a/../b").value(), "b");
  EXPECT_EQ(ServedModelName("", ".").value(), here);
  EXPECT_EQ(ServedModelName("", "./").value(), here);
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
