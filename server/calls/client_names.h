// ClientNames: who is one client to queues and budgets where nobody verifies tokens (access.h). A
// bearer token is a client, on whatever connections; but a connection may name only a few: what it
// names beyond them, and what comes without a token, is the connection's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/mutex.h"

namespace fox {

// All methods may be called from any thread.
class ClientNames {
 public:
  static constexpr size_t kTokensOfAConnection = 8;

  // `token` "": none.
  uint64_t Of(const std::string& peer, absl::string_view token);

 private:
  static constexpr size_t kConnections = 4096;  // remembered; then it begins anew

  Mutex mutex_;
  std::map<std::string, std::vector<uint64_t>> tokens_ ABSL_GUARDED_BY(mutex_);  // of each peer
};

}  // namespace fox
