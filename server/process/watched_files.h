// WatchedFiles: small files that an operator may replace while the server runs: keys, certificates,
// tokens. No thread watches them: each use asks whether a file has changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/request/request.h"

namespace fox {

class WatchedFiles {
 public:
  static constexpr Seconds kInterval = 1.0;

  // Remembers the present state of the files at `paths`. Later states are read at most once in each
  // `interval`.
  explicit WatchedFiles(std::vector<std::string> paths, Seconds interval = kInterval);

  // True if a file has changed since construction, or since the last call that returned true.
  // `now`: on any steady clock. Any thread; of concurrent callers only one gets true.
  bool Changed(Seconds now);

  // True if the file exists and users other than its owner and group may read it.
  static bool ReadableByOthers(const std::string& path);

 private:
  // State of a file, which differs after it was replaced or written. Links are followed.
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t seconds = 0, nanoseconds = 0, size = -1;  // of the last change
    bool operator==(const Stamp&) const = default;
  };
  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> StampAll() const;

  const std::vector<std::string> paths_;
  const Seconds interval_;
  Mutex mutex_;
  std::vector<Stamp> known_ ABSL_GUARDED_BY(mutex_);
  Seconds last_check_ ABSL_GUARDED_BY(mutex_) = -kNever;
};

// Returns the contents of a file. NotFound: it does not exist. InvalidArgument: it cannot be read,
// is no regular file or has more than 1 MiB. The message says which, without the file's name.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace fox
