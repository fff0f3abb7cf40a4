// Peer addresses: what tells clients of a network apart before anything is known of them. One
// address is one client; of IPv6 one /64, which is what a site has.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fox {

// An IPv4 address as a number, or the upper half of an IPv6 address. An IPv4 address that is mapped
// into IPv6 is the IPv4 address, ::1 is 127.0.0.1.
uint64_t NetworkOf(const sockaddr_storage& peer);
// The same of "ipv4:10.0.0.1:4711" or "ipv6:[fe80::1]:4711", brackets percent-encoded or not, as
// gRPC and http_port.h write peers. Nothing: it is neither.
std::optional<uint64_t> NetworkOf(absl::string_view peer);

bool IsLoopback(uint64_t network);

// Which calls are one client's to queues and budgets when no token and no gateway says so: those of
// a network. Addresses of loopback tell nothing apart, and a proxy on this machine has one for all
// its clients: there each connection is a client. A peer that has no address is one, too.
uint64_t UnverifiedClientOf(const std::string& peer);

}  // namespace fox
