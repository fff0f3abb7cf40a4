// ServerCore: who a call's client is, what is refused and counted, and calls that are ended by id.
#include "server/calls/server_core.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <vector>

#include "tests/e2e/test_core.h"

namespace fox {
namespace {

CallInfo Described(ServerCore& core, const std::string& peer,
                   const std::map<std::string, std::string>& headers) {
  return core.Describe("Generate", peer, [&](const std::string& name) -> absl::string_view {
    const auto found = headers.find(name);
    return found == headers.end() ? absl::string_view() : absl::string_view(found->second);
  });
}

TEST(ServerCoreTest, AClientIsWhomATrustedGatewayNamesElseItsTokenElseItsConnection) {
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  TestCore test(options), without;
  const auto client = [](TestCore& of, const std::string& peer, const std::string& name,
                         const std::string& token) {
    return Described(*of.core, peer, {{"x-client", name}, {"authorization", token}}).client;
  };
  EXPECT_EQ(client(test, "a", "one", ""), client(test, "b", "one", "Bearer some-token"));
  EXPECT_NE(client(test, "a", "one", ""), client(test, "a", "two", ""));
  EXPECT_EQ(client(test, "a", "", "Bearer some-token"), client(test, "b", "", "Bearer some-token"));
  EXPECT_NE(client(test, "a", "", "Basic x"), client(test, "b", "", "Basic x"));
  EXPECT_EQ(client(without, "a", "one", ""), client(without, "a", "two", ""));
  const std::string parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_EQ(Described(*test.core, "a", {{"traceparent", parent}}).trace.parent, parent);
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

class EndedCall final : public RunningCall {
 public:
  void Cancel(const absl::Status& status) override { ended.push_back(status); }
  void Abandon(const absl::Status& status) override { ended.push_back(status); }
  std::vector<absl::Status> ended;
};

TEST(ServerCoreTest, AbortEndsTheCallOfThatId) {
  TestCore test;
  const auto call = std::make_shared<EndedCall>();
  ASSERT_TRUE(test.core->Enter("mine", call));
  EXPECT_FALSE(test.core->Enter("mine", call));
  EXPECT_FALSE(test.core->Abort("another"));
  EXPECT_TRUE(call->ended.empty());
  EXPECT_TRUE(test.core->Abort("mine"));
  EXPECT_EQ(call->ended, std::vector<absl::Status>{absl::OkStatus()});
  test.core->Leave("mine");
  EXPECT_FALSE(test.core->Abort("mine"));
}

}  // namespace
}  // namespace fox
