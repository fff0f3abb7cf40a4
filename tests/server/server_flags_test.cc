// fox-server's flags: what is refused beyond single ranges, and where values go.
#include "server/server_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fox {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& arguments, ServerFlags* flags) {
  FlagSet set;
  RegisterServerFlags(flags, &set);
  absl::Status status = set.Parse(arguments, nullptr);
  if (status.ok()) status = CheckServerFlags(*flags);
  return std::string(status.message());
}

TEST(ServerFlagsTest, RemoteHostsNeedConsent) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"}) {
    ServerFlags flags;
    EXPECT_EQ(ErrorOf({"--model=m", std::string("--host=") + host}, &flags), "") << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org", ""}) {
    ServerFlags flags;
    EXPECT_THAT(ErrorOf({"--model=m", std::string("--host=") + host}, &flags),
                HasSubstr("--allow-insecure-remote"))
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
                     "--grpc-services=info, health"},
                    &flags),
            "");
  const GrpcServerOptions options = GrpcOptionsOf(flags);
  EXPECT_EQ(options.listen.port, 0);
  EXPECT_EQ(options.max_message_mb, 3);
  EXPECT_EQ(flags.log_tolerance, -12.5);
  EXPECT_EQ(options.services.count("info"), 1u);
}

TEST(ServerFlagsTest, AdminIsNotWhereStrangersAreUnlessThatIsSaid) {
  const auto options_of = [](std::vector<std::string> arguments) {
    ServerFlags flags;
    arguments.insert(arguments.end(), {"--model=m", "--allow-insecure-remote"});
    EXPECT_EQ(ErrorOf(arguments, &flags), "");
    return GrpcOptionsOf(flags);
  };
  EXPECT_EQ(options_of({}).services.count("admin"), 1u);
  EXPECT_EQ(options_of({"--host=0.0.0.0"}).services.count("admin"), 0u);
  EXPECT_EQ(options_of({"--host=0.0.0.0", "--admin-address=main"}).services.count("admin"), 1u);
  const GrpcServerOptions own = options_of({"--host=0.0.0.0", "--admin-address=127.0.0.1:99"});
  EXPECT_EQ(own.services.count("admin"), 0u);
  EXPECT_EQ(own.admin_address, "127.0.0.1:99");
}

}  // namespace
}  // namespace fox
