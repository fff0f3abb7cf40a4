// The end of a port: functions that are still posted to it keep neither the port nor a socket. Its
// answers are tested in tests/e2e/http_connections_test.cc.
#include "server/http/port/http_port.h"

#include <future>
#include <utility>

#include "gtest/gtest.h"
#include "server/calls/call.h"
#include "server/process/connection_acceptor.h"
#include "tests/fixtures/http_client.h"
#include "tests/fixtures/test_core.h"

namespace fox {
namespace {

// A connection, and the descriptor of its other end.
struct Connected {
  Connected() : acceptor(ConnectionAcceptor::Listen({}).value()), client(acceptor->port()) {
    std::promise<int> accepted;
    acceptor->Start([&accepted](int, int taken) { accepted.set_value(taken); });
    descriptor = accepted.get_future().get();
  }
  const std::unique_ptr<ConnectionAcceptor> acceptor;
  HttpClient client;
  int descriptor = -1;
};

// One route.
std::shared_ptr<const HttpRoutes> RouteTo(HttpHandler handler) {
  auto routes = std::make_shared<HttpRoutes>(/*local=*/false, std::vector<std::string>());
  routes->Handle("GET", "/", std::move(handler));
  return routes;
}

TEST(HttpPortTest, WhatIsAnsweredAfterTheEndDoesNotKeepTheLoop) {
  Connected connection;
  std::promise<std::shared_ptr<HttpExchange>> handled;
  std::weak_ptr<int> loop;  // alive as long as its handler
  std::shared_ptr<HttpExchange> exchange;
  {
    const auto owned = std::make_shared<int>();
    loop = owned;
    HttpPort port({}, RouteTo([&handled, owned](std::shared_ptr<HttpExchange> e) {
                    handled.set_value(std::move(e));
                  }));
    port.Add(connection.descriptor);
    connection.client.SendRequest("GET", "/", "");
    exchange = handled.get_future().get();
  }
  EXPECT_FALSE(loop.expired());
  exchange->Write("late");
  exchange->Write("later");
  exchange->EndAnswer(absl::OkStatus(), "", 0);
  exchange = nullptr;
  EXPECT_TRUE(loop.expired());
  EXPECT_TRUE(connection.client.AtEnd());
}

// The form of a stream that begins with a silence, and ends after three of them.
class SilentFormat final : public Format {
 public:
  absl::StatusOr<CallOutline> ParseMessage() override { return CallOutline{{1}, /*stream=*/true}; }
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t) override {
    ended_.get_future().wait();
    return absl::UnavailableError("end");
  }
  void AddEvent(CallEvent) override {}
  void AddKeepAlive() override { silent_ = true; }
  bool HasOutput() const override { return silent_; }
  Output TakeOutput(bool) override {
    silent_ = false;
    if (++turns_ == 3) ended_.set_value();
    return {std::to_string(turns_), {}};
  }
  int64_t held_bytes() const override { return 0; }
  void DropContents() override {}
  std::string EncodeFailure(const absl::Status& status, bool) const override {
    return std::string(status.message());
  }

 private:
  bool silent_ = false;
  int turns_ = 0;
  std::promise<void> ended_;
};

TEST(HttpPortTest, ACallIsToldOfEachSilence) {
  TestCore test;
  HttpPortOptions options;
  options.silence = 0.1;
  options.stall_timeout = 0.05;  // not of an answer that is not being written
  HttpPort port(options, RouteTo([&test](const std::shared_ptr<HttpExchange>& exchange) {
                  auto call = std::make_shared<Call>(*test.core, CallInfo(), Call::Work::kGenerate,
                                                     std::make_unique<SilentFormat>(), exchange);
                  exchange->AttachCall(call);
                  call->Start(/*bytes=*/1);
                }));
  Connected connection;
  port.Add(connection.descriptor);
  connection.client.SendRequest("GET", "/", "");
  EXPECT_EQ(connection.client.Read().body, "123end");
  EXPECT_TRUE(test.WaitIdle());
}

// Whether it came to its turn before the end, or in it.
TEST(HttpPortTest, ASocketAddedLastIsClosed) {
  for (int i = 0; i < 100; ++i) {
    Connected connection;
    {
      HttpPort port({}, RouteTo([](const std::shared_ptr<HttpExchange>&) {}));
      port.Add(connection.descriptor);
    }
    EXPECT_TRUE(connection.client.AtEnd());
  }
}

}  // namespace
}  // namespace fox
