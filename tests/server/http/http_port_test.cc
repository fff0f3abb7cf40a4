// The end of a port: nothing that is still posted to it keeps it, or a socket. What it serves is
// tried in tests/e2e/http_connections_test.cc.
#include "server/http/http_port.h"

#include <future>
#include <utility>

#include "gtest/gtest.h"
#include "server/process/connection_acceptor.h"
#include "tests/fixtures/http_client.h"

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

std::optional<HttpAnswer> Admit(HttpRequest*) { return std::nullopt; }

TEST(HttpPortTest, WhatIsAnsweredAfterTheEndDoesNotKeepTheLoop) {
  Connected connection;
  std::promise<std::shared_ptr<HttpExchange>> handled;
  std::weak_ptr<int> loop;  // alive as long as its handler
  std::shared_ptr<HttpExchange> exchange;
  {
    const auto owned = std::make_shared<int>();
    loop = owned;
    HttpPort port({}, Admit, [&handled, owned](std::shared_ptr<HttpExchange> e) {
      handled.set_value(std::move(e));
    });
    port.Add(connection.descriptor);
    connection.client.SendRequest("GET", "/", "");
    exchange = handled.get_future().get();
  }
  EXPECT_FALSE(loop.expired());
  exchange->BeginStream({});
  exchange->Write("late");
  exchange->End("");
  exchange = nullptr;
  EXPECT_TRUE(loop.expired());
  EXPECT_TRUE(connection.client.AtEnd());
}

// Each of its turns is a write.
struct SilentCall final : HttpCall {
  explicit SilentCall(std::shared_ptr<HttpExchange> e) : exchange(std::move(e)) {}
  void OnSilence() override {
    if (++turns == 1) return exchange->BeginStream({200, "text/plain", {}, "1"});
    turns < 4 ? exchange->Write(std::to_string(turns)) : exchange->End("end");
  }
  void OnClosed(const absl::Status&) override {}

  const std::shared_ptr<HttpExchange> exchange;
  int turns = 0;
};

TEST(HttpPortTest, ACallIsToldOfEachSilence) {
  HttpPortOptions options;
  options.silence = 0.1;
  options.stall_timeout = 0.05;  // not of an answer that is not being written
  HttpPort port(options, Admit, [](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Attach(std::make_shared<SilentCall>(exchange));
  });
  Connected connection;
  port.Add(connection.descriptor);
  connection.client.SendRequest("GET", "/", "");
  EXPECT_EQ(connection.client.Read().body, "123end");
}

// Whether it came to its turn before the end, or in it.
TEST(HttpPortTest, ASocketAddedLastIsClosed) {
  for (int i = 0; i < 100; ++i) {
    Connected connection;
    {
      HttpPort port({}, Admit, [](const std::shared_ptr<HttpExchange>&) {});
      port.Add(connection.descriptor);
    }
    EXPECT_TRUE(connection.client.AtEnd());
  }
}

}  // namespace
}  // namespace fox
