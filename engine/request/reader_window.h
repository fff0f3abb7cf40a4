// ReaderWindow: how far a request's reader has got, and whether the request rests for it
// (Request::flow_window).
#pragma once

#include <cstdint>

#include "engine/request/request.h"

namespace fox {

class ReaderWindow {
 public:
  explicit ReaderWindow(int64_t window) : window_(window) {}

  // Whether the sequence rests: from a full window on, until half of it is free.
  bool paused() const { return paused_; }
  // Since it paused, or was last given or acknowledged a token since; valid while paused().
  Seconds paused_since() const { return paused_since_; }
  int64_t window() const { return window_; }  // 0: not bounded
  int64_t acknowledged() const { return acknowledged_; }
  // Whether the reader has fallen behind lately. The sequence decodes in some steps only, beside
  // others.
  bool is_slow(int64_t produced) const {
    return paused_at_ >= 0 && produced - paused_at_ < 2 * window_;
  }
  void Acknowledge(int64_t tokens) { acknowledged_ += tokens; }
  // Call when tokens were produced or acknowledged.
  void Update(int64_t produced, Seconds now) {
    if (window_ == 0) return;
    const int64_t ahead = produced - acknowledged_;
    if (!paused_ && ahead >= window_) {
      paused_ = true;
      paused_since_ = now;
      paused_at_ = produced;
    } else if (ahead <= window_ / 2) {
      paused_ = false;
    }
  }
  void Touch(Seconds now) { paused_since_ = now; }

 private:
  int64_t window_;
  int64_t acknowledged_ = 0;
  int64_t paused_at_ = -1;  // produced tokens when it paused last; -1: never
  Seconds paused_since_ = 0;
  bool paused_ = false;
};

}  // namespace fox
