// Peers as libraries write them, and the network that each is of.
#include "server/process/peer_address.h"

#include <gtest/gtest.h>

namespace fox {
namespace {

TEST(PeerAddressTest, AnAddressIsReadFromEachForm) {
  EXPECT_EQ(NetworkOf("ipv4:10.0.0.1:4711"), 0x0a000001u);
  EXPECT_EQ(NetworkOf("ipv6:[::ffff:10.0.0.1]:4711"), 0x0a000001u);
  const uint64_t site = NetworkOf("ipv6:[2001:db8:1:2::1]:4711").value();
  EXPECT_EQ(NetworkOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:1"), site);
  EXPECT_NE(NetworkOf("ipv6:%5B2001:db8:1:3::1%5D:1"), site);
  EXPECT_EQ(NetworkOf("ipv6:[fe80::1%25eth0]:1"), NetworkOf("ipv6:[fe80::2]:1"));
}

TEST(PeerAddressTest, LoopbackIsOneNetwork) {
  for (const char* peer : {"ipv4:127.0.0.1:1", "ipv4:127.255.0.1:1", "ipv6:[::1]:1",
                           "ipv6:%5B::1%5D:1", "ipv6:[::ffff:127.0.0.1]:1"}) {
    EXPECT_TRUE(IsLoopback(NetworkOf(peer).value())) << peer;
  }
  for (const char* peer : {"ipv4:128.0.0.1:1", "ipv4:10.0.0.1:1", "ipv6:[::2]:1",
                           "ipv6:[7f00::1]:1", "ipv6:[::7f00:1]:1"}) {
    EXPECT_FALSE(IsLoopback(NetworkOf(peer).value())) << peer;
  }
}

TEST(PeerAddressTest, WhatIsNoAddressHasNone) {
  for (const char* peer : {"", ":", "ipv4:", "ipv4:1", "ipv4:10.0.0:1", "ipv4:[10.0.0.1]:1",
                           "ipv6:::1:1", "ipv6:[::1:1", "ipv6:[]:1", "unix:/tmp/x", "10.0.0.1:1"}) {
    EXPECT_EQ(NetworkOf(peer), std::nullopt) << peer;
  }
}

}  // namespace
}  // namespace fox
