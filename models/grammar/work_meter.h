// WorkMeter: a bound on the work of xgrammar for one call, in steps and in bytes of stack. It
// counts steps and no time, so that a grammar is refused on every machine or on none. The patches
// in xgrammar/ put calls of SpendWork into the library.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace fox {

struct WorkSpent : std::exception {
  explicit WorkSpent(const std::string* rule = nullptr) : place(rule == nullptr ? "" : *rule) {}
  const char* what() const noexcept override { return "too large or too ambiguous"; }

  std::string place;  // the rule or the path in the schema where work ended; empty: not known
};

struct WorkLimits {
  int64_t left = INT64_MAX;           // steps that may still be spent
  const char* stack_end = nullptr;    // lowest address that a frame may have
  const std::string* rule = nullptr;  // name of the rule that is being compiled
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

// Limits the work of its thread for as long as it lives: to `steps`, and to 2 MiB of stack, or less
// if the thread's stack is smaller. One at a time in a thread.
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
