// LogLimit: how often a line about the same thing may be logged: a flood of refusals must not
// become a flood of lines.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace fox {

// One thread at a time.
class LogLimit {
 public:
  LogLimit(int lines, double seconds) : lines_(lines), seconds_(seconds) {}

  // Whether a line may be logged at `now`, in seconds of any clock that starts at 0 or later: at
  // most `lines` in each `seconds`. The value: how many have been left out since the last one.
  std::optional<int64_t> Take(double now) {
    if (now >= end_) {
      end_ = now + seconds_;
      taken_ = 0;
    }
    if (++taken_ <= lines_) return std::exchange(left_out_, 0);
    ++left_out_;
    return std::nullopt;
  }

 private:
  const int lines_;
  const double seconds_;
  double end_ = 0;
  int64_t taken_ = 0, left_out_ = 0;
};

}  // namespace fox
