// CheckPort: a port that answers, a port that speaks TLS, a deaf port.
#include "server/rpc/port_check.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

// The result for a port that sends these bytes.
absl::Status Checked(const std::string& frames, double seconds) {
  int taken = -1;
  absl::Status status = CheckPort(
      [&](int, int descriptor) {
        taken = descriptor;
        send(taken, frames.data(), frames.size(), MSG_NOSIGNAL);
      },
      seconds);
  close(taken);
  return status;
}

TEST(PortCheckTest, SettingsAreNoAnswerAndFieldsBehindOtherFramesAreOne) {
  EXPECT_EQ(Checked(std::string("\0\0\0\4\0\0\0\0\0", 9), 0.05),
            absl::UnavailableError("gRPC does not answer: memory or threads ran out"));
  EXPECT_TRUE(Checked(std::string("\0\0\6\4\0\0\0\0\0abcdef\0\0\1\1\5\0\0\0\1\x88", 25), 10).ok());
}

TEST(PortCheckTest, ATlsPortClosesTheConnection) {
  EXPECT_TRUE(CheckPort([](int, int descriptor) { close(descriptor); }, 10).ok());
}

}  // namespace
}  // namespace fox
