// FOX_CHECK: programmer errors end the process, in release builds too. Operating errors never come
// through here; they are absl::Status in models/, engine/ and server/.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace fox {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace fox

#define FOX_CHECK(condition)                              \
  do {                                                    \
    if (!(condition)) [[unlikely]] {                      \
      ::fox::CheckFailed(#condition, __FILE__, __LINE__); \
    }                                                     \
  } while (false)
