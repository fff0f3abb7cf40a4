// Peer addresses: distinguish clients of a network that have no token. One IPv4 address is one
// client, as is one IPv6 /64, the network of one site.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fox {

// The network of a peer: an IPv4 address as a number, or the upper half of an IPv6 address. An IPv4
// address that is mapped into IPv6 counts as the IPv4 address, and ::1 as 127.0.0.1.
uint64_t NetworkOf(const sockaddr_storage& peer);
// The network of a peer in the notation of gRPC and http_port.h: "ipv4:10.0.0.1:4711" or
// "ipv6:[fe80::1]:4711", brackets percent-encoded or not. nullopt: `peer` is neither.
std::optional<uint64_t> NetworkOf(absl::string_view peer);

// True if the network is 127.0.0.0/8.
bool IsLoopback(uint64_t network);

// The client of a peer without a token or a gateway's name, for queues and budgets: one client for
// each network. On loopback each connection is a client, because a local proxy has one address for
// all its clients. A peer without an address is a client, too.
uint64_t UnverifiedClientOf(const std::string& peer);

}  // namespace fox
