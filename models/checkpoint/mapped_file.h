// MappedFile: a regular file mapped read-only. If the file is truncated while it is mapped, reads
// beyond its new end give zeros instead of killing the process with SIGBUS, and CheckUnchanged
// reports it. So data copied out of a mapping are valid if CheckUnchanged, called after the copy,
// returns ok.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/model_dir.h"

namespace fox {

class MappedFile {
 public:
  // Maps the regular file of `fd`. `name` opens every error (InvalidArgument).
  static absl::StatusOr<MappedFile> Map(FileDescriptor fd, const std::string& name);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  // InvalidArgument when the file was written to or truncated since it was mapped.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile() = default;

  std::string name_;
  FileDescriptor fd_;
  std::span<const std::byte> bytes_;
  int64_t modified_ns_ = 0;
  int guard_ = -1;  // slot in the table of the SIGBUS handler; -1: none
};

}  // namespace fox
