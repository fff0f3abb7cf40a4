// ConnectionAcceptor in front of a gRPC server that answers every call with its peer's address.
#include "server/process/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/byte_buffer.h"

namespace fox {
namespace {

using Milliseconds = std::chrono::milliseconds;

class PeerReactor : public grpc::ServerGenericBidiReactor {
 public:
  explicit PeerReactor(grpc::GenericCallbackServerContext* context) {
    const grpc::Slice slice(context->peer());
    answer_ = grpc::ByteBuffer(&slice, 1);
    StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer answer_;
};

class PeerService : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new PeerReactor(context);
  }
};

// The whole of one call over a connection of its own; empty: it failed.
std::string AskPeer(const std::string& target, int milliseconds = 5000) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + Milliseconds(milliseconds));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(&context, "/test/Peer", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer out;
  call->Read(&out, nullptr);
  queue.Next(&tag, &ok);
  grpc::Slice slice;
  if (!ok || !out.DumpToSingleSlice(&slice).ok()) return "";
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// A TCP connection that speaks no HTTP/2.
class RawClient {
 public:
  explicit RawClient(int port, const char* from = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), port_(port) {
    const sockaddr_in source = Address(from, 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&source), sizeof(source)), 0);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  RawClient& Connect() {
    const sockaddr_in target = Address("127.0.0.1", port_);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&target), sizeof(target)), 0);
    return *this;
  }
  // Whether gRPC has sent its settings, that is, took the connection; false: it was closed.
  bool IsServed() const {
    pollfd waiting{socket_, POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 5000), 1);
    std::array<char, 64> buffer{};
    return recv(socket_, buffer.data(), buffer.size(), 0) > 0;
  }

 private:
  static sockaddr_in Address(const char* host, int port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &out.sin_addr);
    return out;
  }

  int socket_;
  int port_;
};

class ConnectionAcceptorTest : public ::testing::Test {
 protected:
  ~ConnectionAcceptorTest() override {
    acceptor_ = nullptr;
    if (server_ != nullptr) server_->Shutdown();
  }
  void Listen(const AcceptorOptions& options) {
    auto acceptor = ConnectionAcceptor::Listen(options);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
  }
  void Serve() {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    auto sink = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    acceptor_->Start([sink = std::shared_ptr(std::move(sink))](int listener, int descriptor) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listener;
      connection.fd = descriptor;
      sink->HandleNewConnection(&connection);
    });
  }
  std::string Target(const char* host = "127.0.0.1") const {
    return absl::StrCat(host, ":", acceptor_->port());
  }
  // New connections, until one is served. Returns after how many milliseconds, at most 5000.
  int64_t MillisecondsUntilServed() const {
    const auto start = std::chrono::steady_clock::now();
    Milliseconds passed{0};
    while (AskPeer(Target(), 1000).empty() && passed < Milliseconds(5000)) {
      passed = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - start);
    }
    return passed.count();
  }

  PeerService service_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ConnectionAcceptorTest, CallsSeeTheirPeer) {
  Listen({});
  Serve();
  const std::string peer = AskPeer(Target());
  EXPECT_TRUE(absl::StartsWith(peer, "ipv4:127.0.0.1:")) << peer;
  EXPECT_NE(peer, AskPeer(Target()));
}

TEST_F(ConnectionAcceptorTest, ListensOnEveryAddressOfAName) {
  Listen({"localhost", 0});
  Serve();
  EXPECT_FALSE(AskPeer(Target("localhost")).empty());
}

TEST_F(ConnectionAcceptorTest, ListensOnIpv6) {
  auto probe = ConnectionAcceptor::Listen({"::1", 0});
  if (!probe.ok()) GTEST_SKIP() << "no IPv6: " << probe.status();
  acceptor_ = *std::move(probe);
  Serve();
  EXPECT_TRUE(absl::StartsWith(AskPeer(Target("[::1]")), "ipv6:%5B::1%5D:"));
  EXPECT_TRUE(ConnectionAcceptor::Listen({"[::1]", 0}).ok());
}

TEST_F(ConnectionAcceptorTest, IPv4ClientsOfAnIpv6WildcardKeepTheirAddress) {
  auto probe = ConnectionAcceptor::Listen({"::", 0});
  if (!probe.ok()) GTEST_SKIP() << "no IPv6: " << probe.status();
  acceptor_ = *std::move(probe);
  Serve();
  EXPECT_TRUE(absl::StartsWith(AskPeer(Target()), "ipv4:127.0.0.1:"));
}

TEST_F(ConnectionAcceptorTest, ATakenPortIsToldBeforeAnythingIsServed) {
  Listen({});
  const auto second = ConnectionAcceptor::Listen({"127.0.0.1", acceptor_->port()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.status().message(), absl::StrCat("cannot listen on 127.0.0.1, port ",
                                                    acceptor_->port(), ": Address already in use"));
}

TEST_F(ConnectionAcceptorTest, AnAddressThatIsNotOursIsRefused) {
  const auto elsewhere = ConnectionAcceptor::Listen({"192.0.2.1", 0});
  EXPECT_EQ(elsewhere.status().message(),
            "cannot listen on 192.0.2.1, port 0: Cannot assign requested address");
}

TEST_F(ConnectionAcceptorTest, WhoConnectsBeforeTheServerIsServedLater) {
  Listen({});
  RawClient early(acceptor_->port());
  early.Connect();
  Serve();
  EXPECT_TRUE(early.IsServed());
}

TEST_F(ConnectionAcceptorTest, OverTheCapConnectionsAreClosedUntilOthersEnd) {
  Listen({.max_connections = 3});
  Serve();
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 10; ++i) {
    held.push_back(std::make_unique<RawClient>(acceptor_->port()));
    EXPECT_EQ(held.back()->Connect().IsServed(), i < 3) << i;
  }
  EXPECT_EQ(acceptor_->refused(), 7);
  held.clear();
  EXPECT_LT(MillisecondsUntilServed(), 1000);
}

TEST_F(ConnectionAcceptorTest, OneAddressCannotHoldAllConnections) {
  Listen({.max_connections = 5, .max_per_address = 2});
  Serve();
  std::vector<std::unique_ptr<RawClient>> held;
  for (const char* from : {"127.0.0.1", "127.0.0.2"}) {
    for (int i = 0; i < 4; ++i) {
      held.push_back(std::make_unique<RawClient>(acceptor_->port(), from));
      EXPECT_EQ(held.back()->Connect().IsServed(), i < 2) << from << " " << i;
    }
  }
}

TEST_F(ConnectionAcceptorTest, RecoversWhenDescriptorsAreFreeAgain) {
  Listen({.max_connections = 1000});
  Serve();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<RawClient>(acceptor_->port()));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit low{std::min<rlim_t>(limit.rlim_cur, 256), limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  std::vector<int> taken;
  for (int one = open("/dev/null", O_RDONLY); one >= 0; one = dup(one)) taken.push_back(one);
  ASSERT_EQ(errno, EMFILE);
  for (const auto& client : clients) EXPECT_FALSE(client->Connect().IsServed());
  EXPECT_EQ(acceptor_->refused(), 3);
  for (int one : taken) close(one);
  EXPECT_LT(MillisecondsUntilServed(), 1000);
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_F(ConnectionAcceptorTest, StopClosesThePortAndLeavesConnectionsOpen) {
  Listen({});
  Serve();
  RawClient client(acceptor_->port());
  ASSERT_TRUE(client.Connect().IsServed());
  acceptor_->Stop();
  EXPECT_TRUE(ConnectionAcceptor::Listen({"127.0.0.1", acceptor_->port()}).ok());
  EXPECT_TRUE(AskPeer(Target(), 200).empty());
}

}  // namespace
}  // namespace fox
