// WatchedFiles: stamps of files, and reading of small ones.
#include "server/process/watched_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

absl::Status CannotRead(int error) {
  const std::string message = absl::StrCat("cannot be read: ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

}  // namespace

WatchedFiles::WatchedFiles(std::vector<std::string> paths, Seconds interval)
    : paths_(std::move(paths)), interval_(interval), known_(StampAll()) {
  FOX_CHECK(interval_ >= 0);
}

bool WatchedFiles::Changed(Seconds now) {
  const MutexLock lock(mutex_);
  if (now < last_check_ + interval_) return false;
  last_check_ = now;
  std::vector<Stamp> seen = StampAll();
  if (seen == known_) return false;
  known_ = std::move(seen);
  return true;
}

bool WatchedFiles::ReadableByOthers(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0;
}

WatchedFiles::Stamp WatchedFiles::StampOf(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec,
          status.st_size};
}

std::vector<WatchedFiles::Stamp> WatchedFiles::StampAll() const {
  std::vector<Stamp> out;
  for (const std::string& path : paths_) out.push_back(StampOf(path));
  return out;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  // Without O_NONBLOCK a FIFO without a writer would block this thread.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return CannotRead(errno);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status {};
  if (fstat(file, &status) != 0) return CannotRead(errno);
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError("is no regular file");
  std::string out;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(file, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotRead(errno);
    if (got == 0) return out;
    out.append(buffer, static_cast<size_t>(got));
    if (out.size() > kMaxBytes) return absl::InvalidArgumentError("has more than 1 MiB");
  }
}

}  // namespace fox
