// FileSystem: POSIX's calls beneath one directory. Read file_system.h first.
#include "engine/store/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

constexpr char kLockName[] = "lock";
constexpr mode_t kDirectoryMode = 0700, kFileMode = 0600;  // they hold clients' prompts

absl::Status Failed(const char* call) {
  const std::string text = absl::StrCat(call, ": ", std::strerror(errno));
  if (errno == ENOENT) return absl::NotFoundError(text);
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::UnavailableError(text);
}

absl::Status Checked(const char* call, int result) {
  return result < 0 ? Failed(call) : absl::OkStatus();
}

class Directory final : public FileSystem {
 public:
  // Takes both descriptors.
  Directory(int fd, int lock) : fd_(fd), lock_(lock) {}
  ~Directory() override {
    close(lock_);
    close(fd_);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  absl::StatusOr<std::vector<Entry>> List() override {
    DIR* const stream = fdopendir(openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (stream == nullptr) return Failed("opendir");
    std::vector<Entry> entries;
    while (const dirent* entry = readdir(stream)) {
      struct stat about {};
      if (fstatat(fd_, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (!S_ISREG(about.st_mode)) continue;
      constexpr int64_t kBillion = 1'000'000'000;
      entries.push_back(
          {entry->d_name, about.st_size, about.st_mtim.tv_sec * kBillion + about.st_mtim.tv_nsec});
    }
    closedir(stream);
    return entries;
  }
  absl::StatusOr<int> Create(const std::string& name) override {
    return Opened(name, O_WRONLY | O_CREAT | O_TRUNC);
  }
  absl::StatusOr<int> Open(const std::string& name) override { return Opened(name, O_RDONLY); }
  absl::StatusOr<int64_t> Size(int file) override {
    struct stat about {};
    if (fstat(file, &about) != 0) return Failed("fstat");
    return about.st_size;
  }
  absl::Status Write(int file, std::span<const std::byte> bytes, int64_t offset) override {
    while (!bytes.empty()) {
      const ssize_t count = pwrite(file, bytes.data(), bytes.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed("write");
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += count;
    }
    return absl::OkStatus();
  }
  absl::Status Read(int file, std::span<std::byte> bytes, int64_t offset) override {
    while (!bytes.empty()) {
      const ssize_t count = pread(file, bytes.data(), bytes.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed("read");
      if (count == 0) return absl::UnavailableError("read: the file is too short");
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += count;
    }
    return absl::OkStatus();
  }
  absl::Status Sync(int file) override { return Checked("fsync", fsync(file)); }
  void Close(int file) override { close(file); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Checked("rename", renameat(fd_, from.c_str(), fd_, to.c_str()));
  }
  absl::Status Remove(const std::string& name) override {
    return Checked("unlink", unlinkat(fd_, name.c_str(), 0));
  }
  absl::Status SyncNames() override { return Checked("fsync", fsync(fd_)); }
  void Touch(const std::string& name) override {
    // Without it the file goes earlier than others, no more.
    static_cast<void>(utimensat(fd_, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW));
  }

 private:
  absl::StatusOr<int> Opened(const std::string& name, int flags) const {
    const int file =
        openat(fd_, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kFileMode);
    if (file < 0) return Failed("open");
    return file;
  }

  const int fd_, lock_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> OpenDirectory(const std::string& path) {
  const auto refuse = [&path](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  if (mkdir(path.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
    return refuse(std::strerror(errno));
  }
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return refuse(std::strerror(errno));
  const int lock = openat(fd, kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kFileMode);
  const int why = lock < 0 ? errno : flock(lock, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (why == 0) return std::unique_ptr<FileSystem>(std::make_unique<Directory>(fd, lock));
  if (lock >= 0) close(lock);
  close(fd);
  if (lock < 0) return refuse(std::strerror(why));
  return refuse(why == EWOULDBLOCK ? "another server uses this directory" : std::strerror(why));
}

}  // namespace fox
