// Peer addresses: parses them, and hashes them to numbers of clients.
#include "server/process/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/hash/hash.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace fox {

static_assert(sizeof(sockaddr_storage) >= sizeof(sockaddr_in) &&
              sizeof(sockaddr_storage) >= sizeof(sockaddr_in6));

uint64_t NetworkOf(const sockaddr_storage& peer) {
  if (peer.ss_family != AF_INET6) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr);
  }
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ip)) return ntohl(ip.s6_addr32[3]);
  if (IN6_IS_ADDR_LOOPBACK(&ip)) return INADDR_LOOPBACK;
  return uint64_t{ip.s6_addr32[0]} << 32 | ip.s6_addr32[1];
}

std::optional<uint64_t> NetworkOf(absl::string_view peer) {
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  absl::string_view text = plain;
  text = text.substr(0, text.rfind(':'));  // without the port
  sockaddr_storage address{};
  if (absl::ConsumePrefix(&text, "ipv4:")) {
    address.ss_family = AF_INET;
    auto& ip = reinterpret_cast<sockaddr_in&>(address).sin_addr;
    if (inet_pton(AF_INET, std::string(text).c_str(), &ip) != 1) return std::nullopt;
  } else if (absl::ConsumePrefix(&text, "ipv6:[") && absl::ConsumeSuffix(&text, "]")) {
    address.ss_family = AF_INET6;
    auto& ip = reinterpret_cast<sockaddr_in6&>(address).sin6_addr;
    text = text.substr(0, text.find('%'));  // without the interface
    if (inet_pton(AF_INET6, std::string(text).c_str(), &ip) != 1) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return NetworkOf(address);
}

bool IsLoopback(uint64_t network) { return network >> 24 == IN_LOOPBACKNET; }

uint64_t UnverifiedClientOf(const std::string& peer) {
  const std::optional<uint64_t> network = NetworkOf(peer);
  if (!network.has_value() || IsLoopback(*network)) return absl::HashOf('c', peer);
  return absl::HashOf('a', *network);
}

}  // namespace fox
