// CallRegistry: the prompts that run, by tenant and request id, so that others can end them. It
// knows no more of a call than where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "server/calls/access/call_info.h"

namespace fox {

class Call;

// All methods may be called from any thread.
class CallRegistry {
 public:
  struct Entry {
    std::shared_ptr<Call> call;
    size_t prompt = 0;  // its index in the call
  };

  // Adds a running prompt. False: a prompt of this tenant with this id is running.
  bool AddPrompt(uint64_t tenant, const std::string& request_id, Entry entry);
  void RemovePrompt(uint64_t tenant, const std::string& request_id);

  // The prompts of this id that the caller may end: its own tenant's, or, for an administrator, all
  // tenants'.
  std::vector<Entry> FindPrompts(const CallInfo& caller, const std::string& request_id) const;
  std::vector<Entry> AllPrompts() const;
  bool empty() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, uint64_t>, Entry> prompts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
