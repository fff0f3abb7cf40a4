// The library that makes allocations, system calls and threads of a server fail: a test is linked
// with it to know where it is, and preloads it there.
#pragma once

namespace fox {

inline constexpr int kNoSeccomp = 99;  // the exit code where the system permits no filter

// True if this process is a server under test.
bool CanFailCalls();

}  // namespace fox
