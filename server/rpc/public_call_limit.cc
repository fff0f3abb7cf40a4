// PublicCallLimit: see public_call_limit.h.
#include "server/rpc/public_call_limit.h"

namespace fox {

bool PublicCallLimit::Enter(const void* connection, Seconds now) {
  const MutexLock lock(mutex_);
  if (now >= forget_at_) {
    open_.clear();
    forget_at_ = now + kForgetAfter;
  }
  int& open = open_[connection];
  if (open >= kMostOfAConnection) return false;
  ++open;
  return true;
}

void PublicCallLimit::Leave(const void* connection) {
  const MutexLock lock(mutex_);
  const auto found = open_.find(connection);
  if (found != open_.end() && --found->second <= 0) open_.erase(found);
}

}  // namespace fox
