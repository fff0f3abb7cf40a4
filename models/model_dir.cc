// ModelDir over openat2(RESOLVE_BENEATH); see model_dir.h.
#include "models/model_dir.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/error_text.h"

namespace fox {
namespace {

// O_NONBLOCK: opening a FIFO returns at once, and fstat then tells that it is one.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

absl::Status OpenError(const std::string& name, int error) {
  const std::string shown = Printable(name);
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(absl::StrCat(shown, ": no such file in the model directory"));
    case EXDEV:
      // The name itself may be an absolute path, which an error must not repeat.
      return absl::InvalidArgumentError(
          name.find('/') == std::string::npos
              ? absl::StrCat(shown,
                             ": is a symbolic link that leaves the model directory; "
                             "copy the file itself into it")
              : std::string("a file name leaves the model directory"));
    case ELOOP:
      return absl::InvalidArgumentError(
          absl::StrCat(shown, ": is a symbolic link that cannot be followed"));
    case ENXIO:
    case ENODEV:
      return absl::InvalidArgumentError(absl::StrCat(shown, ": is not a regular file"));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(shown, ": cannot be opened (errno ", error, ")"));
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int OpenPlainName(int dir_fd, const std::string& name) {
  if (name.find('/') != std::string::npos || name == "." || name == "..") return -EXDEV;
  const int fd = openat(dir_fd, name.c_str(), kReadFlags | O_NOFOLLOW);
  return fd >= 0 ? fd : -errno;
}

int OpenBeneath(int dir_fd, const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos) return -ENOENT;
  open_how how = {};
  how.flags = static_cast<uint64_t>(kReadFlags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: a rename elsewhere raced with the resolution of "..".
  for (int attempt = 0; attempt < 16; ++attempt) {
    const long fd = syscall(SYS_openat2, dir_fd, name.c_str(), &how, sizeof(how));
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == ENOSYS || errno == EPERM) return OpenPlainName(dir_fd, name);
    if (errno != EAGAIN && errno != EINTR) return -errno;
  }
  return -EAGAIN;
}

absl::StatusOr<ModelDir> ModelDir::Open(const std::string& dir) {
  FileDescriptor fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) return ModelDir(std::move(fd));
  if (errno == ENOENT) return absl::NotFoundError("the model directory does not exist");
  if (errno == ENOTDIR) return absl::InvalidArgumentError("the model path is not a directory");
  return absl::InvalidArgumentError(
      absl::StrCat("the model directory cannot be opened (errno ", errno, ")"));
}

absl::StatusOr<FileDescriptor> ModelDir::OpenFile(const std::string& name) const {
  const int result = OpenBeneath(fd_.get(), name);
  if (result < 0) return OpenError(name, -result);
  FileDescriptor fd(result);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return OpenError(name, errno);
  if (!S_ISREG(info.st_mode)) return OpenError(name, ENODEV);
  return fd;
}

absl::StatusOr<std::string> ModelDir::ReadText(const std::string& name, size_t max_bytes) const {
  absl::StatusOr<FileDescriptor> fd = OpenFile(name);
  if (!fd.ok()) return fd.status();
  // Read to the end rather than to a size asked for before: the file may change meanwhile.
  std::string text;
  char block[16384];
  while (true) {
    const ssize_t count = read(fd->get(), block, sizeof(block));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(Printable(name), ": cannot be read (errno ", errno, ")"));
    }
    if (count == 0) return text;
    text.append(block, static_cast<size_t>(count));
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(Printable(name), ": larger than ", max_bytes, " bytes"));
    }
  }
}

bool ModelDir::Contains(const std::string& name) const {
  struct stat info = {};
  return fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace fox
