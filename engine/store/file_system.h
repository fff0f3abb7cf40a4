// FileSystem: the calls that a DiskStore makes on its directory. Tests put one of their own here,
// which fails any call or loses its power between two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fox {

// Names are of files in the directory. All methods may be called from any thread; a file is used by
// one thread. Errors are Unavailable, but NotFound: there is no such file; ResourceExhausted: the
// disk or a quota is full.
class FileSystem {
 public:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t used = 0;  // when it was written or touched last, in nanoseconds
  };

  virtual ~FileSystem() = default;

  // Every regular file.
  virtual absl::StatusOr<std::vector<Entry>> List() = 0;
  // A new, empty file to write, in place of an old one.
  virtual absl::StatusOr<int> Create(const std::string& name) = 0;
  virtual absl::StatusOr<int> Open(const std::string& name) = 0;
  virtual absl::StatusOr<int64_t> Size(int file) = 0;
  // All of the bytes, or an error.
  virtual absl::Status Write(int file, std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual absl::Status Read(int file, std::span<std::byte> bytes, int64_t offset) = 0;
  // Returns when the file's contents would survive a loss of power.
  virtual absl::Status Sync(int file) = 0;
  virtual void Close(int file) = 0;
  // Replaces `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& name) = 0;
  // Returns when the names would survive a loss of power.
  virtual absl::Status SyncNames() = 0;
  // The file was used now.
  virtual void Touch(const std::string& name) = 0;
};

// Opens the directory, which it makes if its parent exists, and locks it for this process.
// InvalidArgument, in one line: it cannot be made, read or written to, or another server uses it.
absl::StatusOr<std::unique_ptr<FileSystem>> OpenDirectory(const std::string& path);

}  // namespace fox
