// PublicCallLimit: counts by client. See public_call_limit.h.
#include "server/rpc/public_call_limit.h"

#include "absl/hash/hash.h"
#include "kernels/core/check.h"

namespace fox {

uint64_t PublicCallLimit::ClientOf(const void* connection, absl::string_view name) {
  return name.empty() ? absl::HashOf(connection) : absl::HashOf(name);
}

bool PublicCallLimit::Enter(uint64_t client, Seconds now) {
  const MutexLock lock(mutex_);
  if (now >= forget_at_) {
    open_.clear();
    forget_at_ = now + kForgetAfter;
  }
  int& open = open_[client];
  if (open >= kMaxOfAClient) return false;
  ++open;
  return true;
}

void PublicCallLimit::Leave(uint64_t client) {
  const MutexLock lock(mutex_);
  const auto found = open_.find(client);
  if (found == open_.end()) return;  // forgotten
  FOX_CHECK(found->second > 0);
  if (--found->second == 0) open_.erase(found);
}

}  // namespace fox
