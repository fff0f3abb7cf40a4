// CallRegistry: a map behind a lock. See registry.h.
#include "server/calls/registry.h"

#include "kernels/core/check.h"

namespace fox {

bool CallRegistry::AddPrompt(uint64_t tenant, const std::string& request_id, Entry entry) {
  const MutexLock lock(mutex_);
  return prompts_.emplace(std::pair(request_id, tenant), std::move(entry)).second;
}

void CallRegistry::RemovePrompt(uint64_t tenant, const std::string& request_id) {
  Entry removed;  // outlives the lock: it may be the call's last reference
  const MutexLock lock(mutex_);
  const auto found = prompts_.find({request_id, tenant});
  FOX_CHECK(found != prompts_.end());
  removed = std::move(found->second);
  prompts_.erase(found);
}

std::vector<CallRegistry::Entry> CallRegistry::FindPrompts(const CallInfo& caller,
                                                           const std::string& request_id) const {
  std::vector<Entry> found;
  const MutexLock lock(mutex_);
  for (auto it = prompts_.lower_bound({request_id, 0});
       it != prompts_.end() && it->first.first == request_id; ++it) {
    if (caller.administrator || it->first.second == caller.tenant) found.push_back(it->second);
  }
  return found;
}

std::vector<CallRegistry::Entry> CallRegistry::AllPrompts() const {
  std::vector<Entry> all;
  const MutexLock lock(mutex_);
  for (const auto& [id, entry] : prompts_) all.push_back(entry);
  return all;
}

bool CallRegistry::empty() const {
  const MutexLock lock(mutex_);
  return prompts_.empty();
}

}  // namespace fox
