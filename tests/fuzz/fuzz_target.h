// What every fuzz target defines, and what it may expect of any refusal. libFuzzer calls the target
// in the preset fuzz; elsewhere replay_main.cc does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/core/check.h"

// Aborts, by FOX_CHECK, where the code under test is wrong. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fox {

// A refusal of something that came from outside: one printable line of at most 1 KiB that says so.
inline void CheckRefusal(const absl::Status& status) {
  FOX_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
            absl::IsUnimplemented(status) || absl::IsOutOfRange(status) ||
            absl::IsFailedPrecondition(status));
  FOX_CHECK(!status.message().empty() && status.message().size() <= 1024);
  for (const char c : status.message()) FOX_CHECK(c >= ' ' && c <= '~');
}

}  // namespace fox
