// RequestRegistry: which calls run under which client-visible id: duplicates are refused, Abort
// finds its call. Invariant: an id is present from Add until Remove.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/mutex.h"

namespace fox {

// What others may do to a call while it runs. All methods may be called from any thread.
class RunningCall {
 public:
  virtual ~RunningCall() = default;
  // Ends its sequences; Ok: they finish with ABORT.
  virtual void Cancel(const absl::Status& status) = 0;
  // Ends the call without the engine, for one that hangs.
  virtual void Abandon(const absl::Status& status) = 0;
};

// All methods may be called from any thread.
class RequestRegistry {
 public:
  // False: the id is taken.
  bool Add(const std::string& request_id, std::shared_ptr<RunningCall> call) {
    const MutexLock lock(mutex_);
    return active_.emplace(request_id, std::move(call)).second;
  }
  void Remove(const std::string& request_id) {
    std::shared_ptr<RunningCall> removed;  // destroyed without the lock
    const MutexLock lock(mutex_);
    auto it = active_.find(request_id);
    if (it == active_.end()) return;
    removed = std::move(it->second);
    active_.erase(it);
  }
  std::shared_ptr<RunningCall> Find(const std::string& request_id) const {
    const MutexLock lock(mutex_);
    auto it = active_.find(request_id);
    return it == active_.end() ? nullptr : it->second;
  }
  std::vector<std::shared_ptr<RunningCall>> All() const {
    const MutexLock lock(mutex_);
    std::vector<std::shared_ptr<RunningCall>> all;
    for (const auto& [id, call] : active_) all.push_back(call);
    return all;
  }
  size_t size() const {
    const MutexLock lock(mutex_);
    return active_.size();
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<RunningCall>> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
