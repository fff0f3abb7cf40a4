// ClientNames: see client_names.h.
#include "server/calls/client_names.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace fox {

uint64_t ClientNames::Of(const std::string& peer, absl::string_view token) {
  const uint64_t connection = absl::HashOf('p', peer);
  if (token.empty()) return connection;
  const uint64_t client = absl::HashOf('t', token);
  const MutexLock lock(mutex_);
  if (tokens_.size() >= kConnections && tokens_.count(peer) == 0) tokens_.clear();
  std::vector<uint64_t>& named = tokens_[peer];
  if (std::find(named.begin(), named.end(), client) != named.end()) return client;
  if (named.size() >= kTokensOfAConnection) return connection;
  named.push_back(client);
  return client;
}

}  // namespace fox
