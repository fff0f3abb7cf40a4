// WatchedFiles: small files that an operator may replace while the server runs: keys, certificates,
// tokens. No thread waits for them: before one is used it is asked whether it is another.
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

  // The files as they are now count as known. They are looked at once an `interval`, however often
  // they are asked for.
  explicit WatchedFiles(std::vector<std::string> paths, Seconds interval = kInterval);

  // Whether any of them is another than at construction or when this last said so. `now`: on any
  // steady clock. Any thread; one of those that ask at a time gets true.
  bool Changed(Seconds now);

  // Whether users beside the owner and the group may read it. False: also when it is not there.
  static bool ReadableByOthers(const std::string& path);

 private:
  // What differs when a file was replaced or written, links followed.
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t seconds = 0, nanoseconds = 0, size = -1;  // of the last change
    bool operator==(const Stamp&) const = default;
  };
  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> Look() const;

  const std::vector<std::string> paths_;
  const Seconds interval_;
  Mutex mutex_;
  std::vector<Stamp> known_ ABSL_GUARDED_BY(mutex_);
  Seconds last_look_ ABSL_GUARDED_BY(mutex_) = -kNever;
};

// All of a file. NotFound: there is none; InvalidArgument: it cannot be read, is no regular file or
// has more than 1 MiB. The message says which, without the file's name.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace fox
