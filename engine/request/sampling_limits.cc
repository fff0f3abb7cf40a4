// Limits of sampling: messages for values outside of them.
#include "engine/request/sampling_limits.h"

#include "absl/strings/str_cat.h"

namespace fox {

std::string ToString(const Range& range) {
  return absl::StrCat(range.open_low ? "(" : "[", range.low, ", ", range.high,
                      range.open_high ? ")" : "]");
}

absl::Status CheckRange(const char* field, double value, const Range& range) {
  if (range.Contains(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": must be in ", ToString(range)));
}

absl::Status CheckCount(const char* field, size_t count, size_t max) {
  if (count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": at most ", max, " entries"));
}

}  // namespace fox
