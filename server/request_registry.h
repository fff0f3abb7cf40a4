// RequestRegistry: which calls run under which client-visible id: duplicates are refused, Abort
// finds its call. Invariant: an id is present from Add until Remove.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/mutex.h"

namespace fox {

class Generation;

// All methods may be called from any thread.
class RequestRegistry {
 public:
  // False: the id is taken.
  bool Add(const std::string& request_id, std::shared_ptr<Generation> generation) {
    const MutexLock lock(mutex_);
    return active_.emplace(request_id, std::move(generation)).second;
  }
  void Remove(const std::string& request_id) {
    std::shared_ptr<Generation> removed;  // destroyed without the lock
    const MutexLock lock(mutex_);
    auto it = active_.find(request_id);
    if (it == active_.end()) return;
    removed = std::move(it->second);
    active_.erase(it);
  }
  std::shared_ptr<Generation> Find(const std::string& request_id) const {
    const MutexLock lock(mutex_);
    auto it = active_.find(request_id);
    return it == active_.end() ? nullptr : it->second;
  }
  std::vector<std::shared_ptr<Generation>> All() const {
    const MutexLock lock(mutex_);
    std::vector<std::shared_ptr<Generation>> all;
    for (const auto& [id, generation] : active_) all.push_back(generation);
    return all;
  }
  size_t size() const {
    const MutexLock lock(mutex_);
    return active_.size();
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Generation>> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
