// CallHandle: what a reactor knows of its Generation. gRPC's threads start and cancel a call while
// the delivery pool ends it; whatever comes first, a generation whose client has gone is cancelled
// once, and an ended one is let go.
#pragma once

#include <memory>

#include "engine/mutex.h"
#include "server/generation.h"

namespace fox {

// All methods may be called from any thread.
class CallHandle {
 public:
  // Called once, with what Generation::Start gave. It may have ended by now.
  void Set(const std::shared_ptr<Generation>& generation);
  // The client went away: cancels the generation, now or as soon as it is set.
  void Cancel();
  // The generation has ended.
  void Release();

 private:
  Mutex mutex_;
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fox
