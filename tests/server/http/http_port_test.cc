// The end of a port: nothing that is still posted to it keeps it, or a socket. What it serves is
// tried in tests/e2e/http_connections_test.cc.
#include "server/http/http_port.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/e2e/http_client.h"

namespace fox {
namespace {

// Listens on any port of loopback.
class Listener {
 public:
  Listener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(socket_, plain, length), 0);
    EXPECT_EQ(listen(socket_, 128), 0);
    EXPECT_EQ(getsockname(socket_, plain, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(socket_); }
  int port() const { return port_; }
  int Accept() const { return accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC); }

 private:
  int socket_, port_ = 0;
};

std::optional<HttpAnswer> Admit(const HttpRequest&) { return std::nullopt; }

TEST(HttpPortTest, WhatIsAnsweredAfterTheEndDoesNotKeepTheLoop) {
  const Listener listener;
  std::promise<std::shared_ptr<HttpExchange>> handled;
  std::weak_ptr<int> loop;  // alive as long as its handler
  std::shared_ptr<HttpExchange> exchange;
  HttpClient client(listener.port());
  {
    const auto owned = std::make_shared<int>();
    loop = owned;
    HttpPort port({}, Admit, [&handled, owned](std::shared_ptr<HttpExchange> e) {
      handled.set_value(std::move(e));
    });
    port.Add(listener.Accept());
    client.SendRequest("GET", "/", "");
    exchange = handled.get_future().get();
  }
  EXPECT_FALSE(loop.expired());
  exchange->BeginStream({});
  exchange->Write("late");
  exchange->End("");
  exchange = nullptr;
  EXPECT_TRUE(loop.expired());
  EXPECT_TRUE(client.AtEnd());
}

// Whether it came to its turn before the end, or in it.
TEST(HttpPortTest, ASocketAddedLastIsClosed) {
  const Listener listener;
  for (int i = 0; i < 100; ++i) {
    HttpClient client(listener.port());
    {
      HttpPort port({}, Admit, [](const std::shared_ptr<HttpExchange>&) {});
      port.Add(listener.Accept());
    }
    EXPECT_TRUE(client.AtEnd());
  }
}

}  // namespace
}  // namespace fox
