// Client names: see client_names.h.
#include "server/calls/client_names.h"

#include <optional>

#include "absl/hash/hash.h"
#include "server/process/peer_address.h"

namespace fox {

uint64_t UnverifiedClientOf(const std::string& peer) {
  const std::optional<uint64_t> network = NetworkOf(peer);
  if (!network.has_value() || IsLoopback(*network)) return absl::HashOf('c', peer);
  return absl::HashOf('a', *network);
}

}  // namespace fox
