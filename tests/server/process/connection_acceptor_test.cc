// ConnectionAcceptor in front of an endpoint that greets each connection and keeps it.
#include "server/process/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"

namespace fox {
namespace {

class Client {
 public:
  explicit Client(int port, const char* from = "127.0.0.1") : port_(port) {
    const sockaddr_storage source = Address(from, 0);
    socket_ = socket(source.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&source), sizeof(source)), 0);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Client& Connect(const char* host = "127.0.0.1") {
    const sockaddr_storage target = Address(host, port_);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&target), sizeof(target)), 0);
    return *this;
  }
  // True if the endpoint greets the connection, false if it was closed.
  bool IsServed() const {
    pollfd waiting{socket_, POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 5000), 1);
    char greeting = 0;
    return recv(socket_, &greeting, 1, 0) > 0;
  }

 private:
  static sockaddr_storage Address(const char* host, int port) {
    sockaddr_storage out{};
    const bool ipv6 = std::strchr(host, ':') != nullptr;
    out.ss_family = ipv6 ? AF_INET6 : AF_INET;
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_port = htons(static_cast<uint16_t>(port));  // at the same place in both
    inet_pton(
        out.ss_family, host,
        ipv6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(out).sin6_addr) : &v4.sin_addr);
    return out;
  }

  const int port_;
  int socket_ = -1;
};

class ConnectionAcceptorTest : public ::testing::Test {
 protected:
  ~ConnectionAcceptorTest() override {
    acceptor_ = nullptr;
    EndAll();
  }
  // False: this machine has no such address.
  bool Listen(const AcceptorOptions& options) {
    auto acceptor = ConnectionAcceptor::Listen(options);
    if (!acceptor.ok()) return false;
    acceptor_ = *std::move(acceptor);
    return true;
  }
  void Serve() {
    acceptor_->Start([this](int, int descriptor) {
      const MutexLock lock(mutex_);
      served_.push_back(descriptor);
      EXPECT_EQ(send(descriptor, "x", 1, MSG_NOSIGNAL), 1);
    });
  }
  // Closes the server's side of all connections.
  void EndAll() {
    const MutexLock lock(mutex_);
    for (const int descriptor : served_) close(descriptor);
    served_.clear();
  }
  std::unique_ptr<Client> Connect(const char* from = "127.0.0.1") {
    auto client = std::make_unique<Client>(acceptor_->port(), from);
    client->Connect();
    return client;
  }
  // Opens connections until one is served. False: none was served within a second.
  bool IsSoonServed() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!Connect()->IsServed()) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  Mutex mutex_;
  std::vector<int> served_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(ConnectionAcceptorTest, ListensOnEveryAddressOfAHost) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"localhost", "127.0.0.1", "127.0.0.1"},
      {"::1", "::1", "::1"},
      {"[::1]", "::1", "::1"},
      {"::", "127.0.0.1", "127.0.0.1"}};  // clients of IPv4, too
  for (const auto& [host, from, target] : cases) {
    if (!Listen({host, 0})) continue;  // no IPv6
    Serve();
    EXPECT_TRUE(Client(acceptor_->port(), from).Connect(target).IsServed()) << host;
  }
}

TEST_F(ConnectionAcceptorTest, AnAddressThatIsTakenOrNotOursIsRefused) {
  ASSERT_TRUE(Listen({}));
  const int port = acceptor_->port();
  EXPECT_EQ(ConnectionAcceptor::Listen({"127.0.0.1", port}).status(),
            absl::UnavailableError(absl::StrCat("cannot listen on 127.0.0.1, port ", port,
                                                ": Address already in use")));
  EXPECT_EQ(ConnectionAcceptor::Listen({"192.0.2.1", 0}).status().message(),
            "cannot listen on 192.0.2.1, port 0: Cannot assign requested address");
}

TEST_F(ConnectionAcceptorTest, AClientThatConnectsBeforeTheStartIsServedLater) {
  ASSERT_TRUE(Listen({}));
  const auto early = Connect();
  Serve();
  EXPECT_TRUE(early->IsServed());
}

TEST_F(ConnectionAcceptorTest, OverTheCapConnectionsAreClosedUntilOthersEnd) {
  ASSERT_TRUE(Listen({.max_connections = 3}));
  Serve();
  std::vector<std::unique_ptr<Client>> held;
  for (int i = 0; i < 10; ++i) {
    held.push_back(Connect());
    EXPECT_EQ(held.back()->IsServed(), i < 3) << i;
  }
  EXPECT_EQ(acceptor_->refused(), 7);
  EndAll();
  EXPECT_TRUE(IsSoonServed());
}

TEST_F(ConnectionAcceptorTest, OneAddressCannotHoldAllConnections) {
  ASSERT_TRUE(Listen({.max_connections = 5, .max_per_address = 2}));
  Serve();
  std::vector<std::unique_ptr<Client>> held;
  for (const char* from : {"127.0.0.1", "127.0.0.2"}) {
    for (int i = 0; i < 4; ++i) {
      held.push_back(Connect(from));
      EXPECT_EQ(held.back()->IsServed(), i < 2) << from << " " << i;
    }
  }
}

TEST_F(ConnectionAcceptorTest, RecoversWhenDescriptorsAreFreeAgain) {
  ASSERT_TRUE(Listen({.max_connections = 1000}));
  Serve();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(acceptor_->port()));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit low{std::min<rlim_t>(limit.rlim_cur, 256), limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  std::vector<int> taken;
  for (int one = open("/dev/null", O_RDONLY); one >= 0; one = dup(one)) taken.push_back(one);
  ASSERT_EQ(errno, EMFILE);
  for (size_t i = 0; i < clients.size(); ++i) EXPECT_FALSE(clients[i]->Connect().IsServed()) << i;
  EXPECT_EQ(acceptor_->refused(), 3);
  for (int one : taken) close(one);
  EXPECT_TRUE(IsSoonServed());
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_F(ConnectionAcceptorTest, StopClosesThePortAndHangUpTheConnections) {
  ASSERT_TRUE(Listen({}));
  Serve();
  const auto client = Connect();
  ASSERT_TRUE(client->IsServed());
  acceptor_->Stop();
  EXPECT_TRUE(ConnectionAcceptor::Listen({"127.0.0.1", acceptor_->port()}).ok());
  acceptor_->HangUp(0);
  EXPECT_FALSE(client->IsServed());
}

}  // namespace
}  // namespace fox
