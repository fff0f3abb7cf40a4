// Without tokens an address is a client, and on loopback a connection is.
#include "server/calls/client_names.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(ClientNamesTest, AnAddressIsAClientWhateverItsPort) {
  const uint64_t client = UnverifiedClientOf("ipv4:10.0.0.1:1000");
  EXPECT_EQ(UnverifiedClientOf("ipv4:10.0.0.1:1001"), client);
  EXPECT_EQ(UnverifiedClientOf("ipv6:[::ffff:10.0.0.1]:1001"), client);
  EXPECT_NE(UnverifiedClientOf("ipv4:10.0.0.2:1000"), client);
}

TEST(ClientNamesTest, ASiteOfIpv6IsAClient) {
  const uint64_t client = UnverifiedClientOf("ipv6:%5B2001:db8:1:2::1%5D:1000");
  EXPECT_EQ(UnverifiedClientOf("ipv6:[2001:db8:1:2:ffff::9]:1001"), client);
  EXPECT_NE(UnverifiedClientOf("ipv6:%5B2001:db8:1:3::1%5D:1000"), client);
}

TEST(ClientNamesTest, OnLoopbackAConnectionIsAClient) {
  for (const char* host : {"ipv4:127.0.0.1:", "ipv4:127.9.9.9:", "ipv6:%5B::1%5D:", "ipv6:[::1]:",
                           "ipv6:[::ffff:127.0.0.1]:", "unix:/"}) {
    const std::string peer = host;
    EXPECT_EQ(UnverifiedClientOf(peer + "1"), UnverifiedClientOf(peer + "1"));
    EXPECT_NE(UnverifiedClientOf(peer + "1"), UnverifiedClientOf(peer + "2")) << peer;
  }
}

}  // namespace
}  // namespace fox
