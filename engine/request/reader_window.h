// ReaderWindow: how many tokens a request's reader has acknowledged, and whether the request pauses
// until the reader catches up (Request::flow_window).
#pragma once

#include <cstdint>

#include "engine/request/request.h"

namespace fox {

class ReaderWindow {
 public:
  explicit ReaderWindow(int64_t window) : window_(window) {}

  // True from a full window on, until half of the window is free.
  bool paused() const { return paused_; }
  // The time of the pause, or of the last Touch since. Valid while paused().
  Seconds paused_since() const { return paused_since_; }
  int64_t window() const { return window_; }  // tokens; 0: no bound
  int64_t acknowledged() const { return acknowledged_; }
  // True if the sequence paused within the last two windows of tokens. Beside others, such a
  // sequence decodes in some steps only (kSlowShare).
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
  // The reader was given or has acknowledged tokens during the pause.
  void Touch(Seconds now) { paused_since_ = now; }

 private:
  int64_t window_;
  int64_t acknowledged_ = 0;
  int64_t paused_at_ = -1;  // produced tokens at the last pause; -1: there was none
  Seconds paused_since_ = 0;
  bool paused_ = false;
};

}  // namespace fox
