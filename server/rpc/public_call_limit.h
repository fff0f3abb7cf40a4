// PublicCallLimit: how many calls of methods that need no token a connection may have open, counted
// when their headers come. The library hands calls over later, by thousands in a flood, and each
// takes 15 kB until it has ended; one that is refused at its headers takes next to nothing.
#pragma once

#include <unordered_map>

#include "engine/mutex.h"
#include "engine/request.h"

namespace fox {

// All methods may be called from any thread.
class PublicCallLimit {
 public:
  static constexpr int kMostOfAConnection = 16;
  // A call that is cancelled at once may never be handed over, so never leave: counts begin anew
  // after this time, and twice as many calls may be open then.
  static constexpr Seconds kForgetAfter = 2;

  // A call of this connection begins, `now` on a clock that goes on. False: it has too many.
  bool Enter(const void* connection, Seconds now);
  // A call that was let in has ended.
  void Leave(const void* connection);

 private:
  Mutex mutex_;
  Seconds forget_at_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<const void*, int> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
