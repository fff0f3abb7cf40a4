// ServerCore: a call's client, refusals and their counts.
#include "server/calls/server_core.h"

#include <gtest/gtest.h>

#include <future>
#include <utility>

#include "tests/engine/eval/run_program.h"
#include "tests/fixtures/test_core.h"

namespace fox {
namespace {

CallInfo Described(ServerCore& core, const std::string& peer,
                   const std::multimap<std::string, std::string>& headers) {
  const auto first = [&](const std::string& name) {
    const auto found = headers.find(name);
    return found == headers.end() ? absl::string_view() : absl::string_view(found->second);
  };
  const std::string& client = core.client_metadata();
  return core.Describe("Generate", peer,
                       {first("authorization"), first("traceparent"),
                        client.empty() ? "" : first(client), headers.count(client) > 1});
}

TEST(ServerCoreTest, AClientIsNamedByATrustedGatewayElseByItsTokenElseByItsAddress) {
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  TestCore without;
  WriteWhole(TempPath("tokens"), "some-token\nother-token\n");
  options.limits.access = Access::Load(TempPath("tokens"), "").value();
  TestCore test(options);
  const auto client = [](TestCore& of, const std::string& peer, const std::string& name,
                         const std::string& token) {
    return Described(*of.core, peer, {{"x-client", name}, {"authorization", token}}).client;
  };
  EXPECT_EQ(client(test, "a", "one", ""), client(test, "b", "one", "Bearer some-token"));
  EXPECT_NE(client(test, "a", "one", ""), client(test, "a", "two", ""));
  EXPECT_EQ(client(test, "a", "", "Bearer some-token"), client(test, "b", "", "Bearer some-token"));
  EXPECT_NE(client(test, "a", "", "Basic x"), client(test, "b", "", "Basic x"));
  EXPECT_EQ(client(without, "a", "one", ""), client(without, "a", "two", ""));
  // A token that nothing verifies is no name.
  EXPECT_EQ(client(without, "a", "", "Bearer x"), client(without, "a", "", "Bearer y"));
  EXPECT_NE(client(without, "a", "", "Bearer x"), client(without, "b", "", "Bearer x"));
  EXPECT_EQ(client(test, "ipv4:10.0.0.1:80", "", ""), client(test, "ipv4:10.0.0.1:81", "", ""));
  const auto tenant = [](TestCore& of, const std::string& token) {
    return Described(*of.core, "a", {{"authorization", token}}).tenant;
  };
  EXPECT_NE(tenant(test, "Bearer some-token"), tenant(test, "Bearer other-token"));
  EXPECT_EQ(tenant(without, "Bearer some-token"), 0u);
  const std::string parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_EQ(Described(*test.core, "a", {{"traceparent", parent}}).trace.parent, parent);
}

// A client's own entry in front of its gateway's would name another client.
TEST(ServerCoreTest, AClientThatIsNamedTwiceIsRefused) {
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  TestCore test(options);
  const auto code = [&](const std::multimap<std::string, std::string>& headers) {
    CallInfo generates = Described(*test.core, "a", headers);
    CallInfo tokenizes = Described(*test.core, "a", headers);
    const absl::Status status = test.core->AdmitPrompt(&generates, 1);
    EXPECT_EQ(test.core->AdmitTokenizing(&tokenizes, 1).code(), status.code());
    return status.code();
  };
  EXPECT_EQ(code({{"x-client", "alice"}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({{"x-client", "alice"}, {"x-client", "mallory"}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"x-client", ""}, {"x-client", ""}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(test.core->refusals().count(RefusalReason::kCredentials), 4);
  EXPECT_EQ(code({{"x-other", "alice"}, {"x-other", "mallory"}}), absl::StatusCode::kOk);
}

TEST(ServerCoreTest, TextsThatFindTheQueueFullAreCounted) {
  TestCore test;
  std::promise<void> gate;
  const std::shared_future<void> open(gate.get_future());
  for (int i = 0; i < 300; ++i) test.core->tokenizing().Post(1, 1, [open] { open.wait(); });
  CallInfo call = Described(*test.core, "a", {});
  const absl::Status status = test.core->AdmitTokenizing(&call, 10);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(test.core->refusals().count(RefusalReason::kQueue), 1);
  gate.set_value();
  EXPECT_TRUE(Eventually([&] { return test.core->tokenizing().queued() == 0; }));
  CallInfo next = Described(*test.core, "a", {});
  EXPECT_TRUE(test.core->AdmitTokenizing(&next, 10).ok());
  EXPECT_EQ(test.core->refusals().count(), 1);
}

}  // namespace
}  // namespace fox
