// Peer addresses in the forms of libraries: their networks, and the clients that they stand for.
#include "server/process/peer_address.h"

#include <gtest/gtest.h>

#include <vector>

namespace fox {
namespace {

// Addresses in one row are of one network, addresses in different rows are not.
TEST(PeerAddressTest, AnAddressIsReadFromEachForm) {
  EXPECT_EQ(NetworkOf("ipv4:10.0.0.1:4711"), 0x0a000001u);
  const std::vector<std::vector<const char*>> networks = {
      {"ipv4:10.0.0.1:4711", "ipv4:10.0.0.1:1", "ipv6:[::ffff:10.0.0.1]:4711"},
      {"ipv4:10.0.0.2:4711"},
      {"ipv6:[2001:db8:1:2::1]:4711", "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:1"},
      {"ipv6:%5B2001:db8:1:3::1%5D:1"},
      {"ipv6:[fe80::1%25eth0]:1", "ipv6:[fe80::2]:1"}};
  for (const auto& row : networks) {
    for (const auto& other : networks) {
      for (const char* peer : other) {
        EXPECT_EQ(NetworkOf(peer) == NetworkOf(row[0]), &row == &other) << peer << " " << row[0];
        EXPECT_EQ(UnverifiedClientOf(peer) == UnverifiedClientOf(row[0]), &row == &other) << peer;
      }
    }
  }
  for (const char* peer : {"", ":", "ipv4:", "ipv4:1", "ipv4:10.0.0:1", "ipv4:[10.0.0.1]:1",
                           "ipv6:::1:1", "ipv6:[::1:1", "ipv6:[]:1", "unix:/tmp/x", "10.0.0.1:1"}) {
    EXPECT_EQ(NetworkOf(peer), std::nullopt) << peer;
  }
}

// On loopback each connection is a client of its own, as is a peer without an address.
TEST(PeerAddressTest, LoopbackIsOneNetwork) {
  for (const std::string peer : {"ipv4:127.0.0.1:", "ipv4:127.255.0.1:", "ipv6:[::1]:",
                                 "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.0.0.1]:", "unix:/"}) {
    EXPECT_EQ(IsLoopback(NetworkOf(peer + "1").value_or(0)), peer != "unix:/") << peer;
    EXPECT_EQ(UnverifiedClientOf(peer + "1"), UnverifiedClientOf(peer + "1")) << peer;
    EXPECT_NE(UnverifiedClientOf(peer + "1"), UnverifiedClientOf(peer + "2")) << peer;
  }
  for (const char* peer : {"ipv4:128.0.0.1:1", "ipv4:10.0.0.1:1", "ipv6:[::2]:1",
                           "ipv6:[7f00::1]:1", "ipv6:[::7f00:1]:1"}) {
    EXPECT_FALSE(IsLoopback(NetworkOf(peer).value())) << peer;
  }
}

}  // namespace
}  // namespace fox
