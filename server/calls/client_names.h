// Client names: which calls are one client's to queues and budgets when no token and no gateway
// says so.
#pragma once

#include <cstdint>
#include <string>

namespace fox {

// The address of the call's peer, of IPv6 the /64. Addresses of loopback tell nothing apart, and a
// proxy on this machine has one for all its clients: there each connection is a client. A peer that
// has no address is one, too.
uint64_t UnverifiedClientOf(const std::string& peer);

}  // namespace fox
