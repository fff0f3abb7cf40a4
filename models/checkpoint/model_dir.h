// ModelDir: the one way to open files of a model directory. Every path resolves beneath the
// directory (a name with "..", an absolute name or a symbolic link cannot leave it) and every file
// is regular, so opening never blocks. One link may leave: in a snapshot of a Hugging Face cache
// (models--*/snapshots/REVISION) one to ../../blobs/FILE. Errors about a file name only the file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fox {

// A file descriptor that closes itself.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }

 private:
  int fd_;
};

class ModelDir {
 public:
  // NotFound, InvalidArgument: `dir` is no directory, or cannot be opened.
  static absl::StatusOr<ModelDir> Open(const std::string& dir);

  // Opens the regular file `name` for reading. NotFound: it does not exist. InvalidArgument: it
  // leaves the directory, is not a regular file, is a Git LFS pointer, or cannot be read.
  absl::StatusOr<FileDescriptor> OpenFile(const std::string& name) const;

  // The whole file as a string. InvalidArgument when it is larger than `max_bytes`.
  absl::StatusOr<std::string> ReadText(const std::string& name, size_t max_bytes) const;

  // True if `name` exists, even as a directory or link that OpenFile refuses.
  bool Contains(const std::string& name) const;

  // The NotFound error for the file `missing`. It adds advice if the directory holds something else
  // than a checkpoint: GGUF files, a repository in a Hugging Face cache, other formats.
  absl::Status NoCheckpoint(const std::string& missing) const;

 private:
  ModelDir(FileDescriptor fd, FileDescriptor blobs)
      : fd_(std::move(fd)), blobs_(std::move(blobs)) {}
  // Opens the file in blobs_ that the symbolic link `name` names; returns the descriptor or -errno,
  // -EXDEV if `name` is not such a link.
  int OpenBlob(const std::string& name) const;

  FileDescriptor fd_;
  FileDescriptor blobs_;  // the directory of blobs in a Hugging Face cache; else -1
};

// Opens `name` beneath the directory `dir_fd` and returns the descriptor, or -errno: -EXDEV when
// the name leaves the directory. OpenBeneath asks the kernel (openat2, Linux 5.6) and, where that
// call does not exist or is forbidden, falls back to OpenPlainName, which accepts only a name
// without directories that is no symbolic link.
int OpenBeneath(int dir_fd, const std::string& name);
int OpenPlainName(int dir_fd, const std::string& name);

}  // namespace fox
