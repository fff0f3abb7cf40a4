// Limits of a request's sampling and stopping fields. The engine's own check, the wire and the
// reader of generation_config.json all use them. The comments of fox/v1/inference.proto repeat
// them; sampling_limits_test compares.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace fox {

// The numbers from `low` to `high`, each bound included unless it is open. NaN is in no range.
struct Range {
  double low = 0, high = 0;
  bool open_low = false, open_high = false;

  constexpr bool Contains(double value) const {
    return (open_low ? value > low : value >= low) && (open_high ? value < high : value <= high);
  }
};

inline constexpr Range kTemperature{0, 100};
inline constexpr Range kTopP{0, 1};
inline constexpr Range kMinP{0, 1};
inline constexpr Range kPresencePenalty{-2, 2};
inline constexpr Range kFrequencyPenalty{-2, 2};
inline constexpr Range kRepetitionPenalty{0, 100, /*open_low=*/true};
inline constexpr Range kLogitBias{-100, 100};
// log eps of a server. eps >= 1 would allow to drop everything.
inline constexpr Range kLogTolerance{-std::numeric_limits<double>::infinity(), 0,
                                     /*open_low=*/true, /*open_high=*/true};

// Numbers of entries in one request.
inline constexpr size_t kMaxLogitBiases = 1024;
inline constexpr size_t kMaxLogprobTokenIds = 128;
inline constexpr size_t kMaxStopTokenIds = 256;
// Stop ids that generation_config.json adds to the request's own.
inline constexpr size_t kMaxDefaultStopTokenIds = 64;

// "(0, 1]"
std::string ToString(const Range& range);

// InvalidArgument: "FIELD: must be in RANGE".
absl::Status CheckRange(const char* field, double value, const Range& range);
// InvalidArgument: "FIELD: at most MAX entries".
absl::Status CheckCount(const char* field, size_t count, size_t max);

}  // namespace fox
