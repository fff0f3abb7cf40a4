// WorkMeter: a bound on what xgrammar does for one call, in steps and in stack, whatever the clock
// says: what is refused is refused on every machine. xgrammar.cmake puts the calls of SpendWork.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace fox {

struct WorkSpent : std::exception {
  explicit WorkSpent(const std::string* rule = nullptr) : place(rule == nullptr ? "" : *rule) {}
  const char* what() const noexcept override { return "too large or too ambiguous"; }

  std::string place;  // where it ended: a rule, or a part of a schema; empty: not known
};

struct WorkLimits {
  int64_t left = INT64_MAX;           // steps
  const char* stack_end = nullptr;    // no frame below
  const std::string* rule = nullptr;  // that is compiled
};
inline constinit thread_local WorkLimits work_limits;

// Throws WorkSpent beyond the thread's limits.
inline void SpendWork(int64_t steps) {
  work_limits.left -= steps;
  if (work_limits.left < 0 ||
      static_cast<const char*>(__builtin_frame_address(0)) < work_limits.stack_end) {
    throw WorkSpent(work_limits.rule);
  }
}

// Limits the thread as long as it lives: in steps, and to 2 MiB of stack or to what the thread has
// of it, less what calls take between two looks.
class WorkMeter {
 public:
  explicit WorkMeter(int64_t steps);
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;
  ~WorkMeter() { work_limits = {}; }

  int64_t spent() const { return steps_ - work_limits.left; }

 private:
  const int64_t steps_;
};

}  // namespace fox
