// CheckPort: a port that answers, one that speaks TLS, one that is deaf.
#include "server/rpc/port_check.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/test_server.h"

namespace fox {
namespace {

TEST(PortCheckTest, SettingsAreNoAnswer) {
  int taken = -1;
  const auto sink = [&](int, int descriptor) {
    taken = descriptor;
    const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
    send(taken, settings.data(), settings.size(), MSG_NOSIGNAL);
  };
  EXPECT_EQ(CheckPort(sink, 0.05),
            absl::UnavailableError("gRPC does not answer: memory or threads ran out"));
  close(taken);
}

TEST(PortCheckTest, FieldsBehindOtherFramesAreOne) {
  int taken = -1;
  const auto sink = [&](int, int descriptor) {
    taken = descriptor;
    const std::string frames("\0\0\6\4\0\0\0\0\0abcdef\0\0\1\1\5\0\0\0\1\x88", 25);
    send(taken, frames.data(), frames.size(), MSG_NOSIGNAL);
  };
  EXPECT_TRUE(CheckPort(sink, 10).ok());
  close(taken);
}

TEST(PortCheckTest, ATlsPortClosesTheConnection) {
  EXPECT_TRUE(CheckPort([](int, int descriptor) { close(descriptor); }, 10).ok());
}

// As Start has done before.
TEST(PortCheckTest, AServerAnswers) {
  TestServer server;
  EXPECT_GT(server.server->port(), 0);
}

}  // namespace
}  // namespace fox
