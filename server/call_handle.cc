// CallHandle: see call_handle.h.
#include "server/call_handle.h"

namespace fox {
namespace {

void CancelForClient(Generation& generation) {
  generation.Cancel(absl::CancelledError("the client went away"));
}

}  // namespace

void CallHandle::Set(const std::shared_ptr<Generation>& generation) {
  {
    const MutexLock lock(mutex_);
    if (!done_) generation_ = generation;
    if (!cancelled_) return;
  }
  CancelForClient(*generation);
}

void CallHandle::Cancel() {
  std::shared_ptr<Generation> generation;
  {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    generation = generation_;
  }
  if (generation != nullptr) CancelForClient(*generation);
}

void CallHandle::Release() {
  const MutexLock lock(mutex_);
  done_ = true;
  generation_ = nullptr;
}

}  // namespace fox
