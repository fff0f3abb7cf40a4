// PublicCallLimit: bounds the open calls of one client to methods that need no token, counted when
// their headers come. The library hands calls over later, by thousands in a flood, and each takes
// 15 kB until it has ended; a call that is refused at its headers takes next to nothing.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/base/mutex.h"
#include "engine/request/request.h"

namespace fox {

// All methods may be called from any thread.
class PublicCallLimit {
 public:
  static constexpr int kMaxOfAClient = 16;
  // A call that is cancelled at once may never be handed over, so never leave: counts begin anew
  // after this time, and twice as many calls may be open then.
  static constexpr Seconds kForgetAfter = 2;

  // `client_metadata`: the entry in which a trusted gateway names its client (ServerLimits).
  // Without it, a connection is a client.
  explicit PublicCallLimit(std::string client_metadata = "")
      : client_metadata_(std::move(client_metadata)) {}
  const std::string& client_metadata() const { return client_metadata_; }
  // `name`: the value of that entry; "": none came.
  static uint64_t ClientOf(const void* connection, absl::string_view name);

  // A call of this client begins, `now` on a monotonic clock. False: the client has too many.
  bool Enter(uint64_t client, Seconds now);
  // A call that was let in has ended.
  void Leave(uint64_t client);

 private:
  const std::string client_metadata_;
  Mutex mutex_;
  Seconds forget_at_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, int> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
