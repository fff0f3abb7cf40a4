// ModelDir over openat2(RESOLVE_BENEATH); see model_dir.h.
#include "models/checkpoint/model_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "models/checkpoint/error_text.h"

namespace fox {
namespace {

namespace fs = std::filesystem;

// O_NONBLOCK: opening a FIFO returns at once, and fstat then identifies it.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
constexpr absl::string_view kLfsPointer = "version https://git-lfs";

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
                             ": is a symbolic link that leaves the model directory; copy the "
                             "file itself into it (hf download REPO --local-dir DIR does)")
              : std::string("a file name leaves the model directory"));
    case ELOOP:
      return InvalidFile(shown, "is a symbolic link that cannot be followed");
    case ENXIO:
    case ENODEV:
      return InvalidFile(shown, "is not a regular file");
    default:
      return InvalidFile(shown, absl::StrCat("cannot be opened (errno ", error, ")"));
  }
}

// The blobs directory of a Hugging Face cache if `dir` is a snapshot in one; else -1.
FileDescriptor OpenBlobs(const std::string& dir) {
  std::error_code error;
  const fs::path snapshots = fs::canonical(dir, error).parent_path();
  const fs::path repository = snapshots.parent_path();
  if (error || snapshots.filename() != "snapshots" ||
      !absl::StartsWith(repository.filename().string(), "models--")) {
    return FileDescriptor();
  }
  const std::string blobs = repository / "blobs";
  return FileDescriptor(open(blobs.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

absl::Status CheckContent(int fd, const std::string& name) {
  std::array<char, kLfsPointer.size()> start = {};
  const ssize_t count = pread(fd, start.data(), start.size(), 0);
  if (count < 0 || absl::string_view(start.data(), static_cast<size_t>(count)) != kLfsPointer) {
    return absl::OkStatus();  // a failure is reported by the read that needs the file
  }
  return InvalidFile(Printable(name), "is a Git LFS pointer, not the file itself: git lfs pull");
}

std::string AdviceOnGguf(const std::string& file) {
  return absl::StrCat("foxserve serve ", file, ", or ./run serve ", file);
}

// The error of a model path that is a file.
absl::Status NotADirectory(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), kReadFlags));
  std::array<char, 4> magic = {};
  const bool read = pread(fd.get(), magic.data(), magic.size(), 0) == ssize_t{magic.size()};
  if (read && absl::string_view(magic.data(), magic.size()) == "GGUF") {
    return InvalidFile(Printable(path),
                       absl::StrCat("is a GGUF file: ", AdviceOnGguf(Printable(path))));
  }
  return InvalidFile(Printable(path), "the model path is not a directory");
}

// The names in a directory that end in `suffix`, sorted. Looks at the first 1,000 entries only.
std::vector<std::string> NamesIn(int dir_fd, const std::string& name, const std::string& suffix) {
  std::vector<std::string> names;
  const int fd = openat(dir_fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* const stream = fd < 0 ? nullptr : fdopendir(fd);
  if (stream == nullptr) return names;
  for (int i = 0; i < 1000; ++i) {
    const dirent* entry = readdir(stream);
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.' && absl::EndsWith(entry->d_name, suffix)) {
      names.emplace_back(entry->d_name);
    }
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

// The error of a model path that does not exist. Adds a hint if it looks like a repository's name.
absl::Status NoDirectory(const std::string& dir) {
  const bool is_id = !absl::EndsWithIgnoreCase(dir, ".gguf") && !absl::StartsWith(dir, "/") &&
                     !absl::StartsWith(dir, ".") && absl::StrContains(dir, '/') &&
                     dir.find('/') == dir.rfind('/') && dir.back() != '/';
  std::string hint;
  if (is_id) {
    hint = absl::StrCat("; a Hugging Face repository? hf download ", Printable(dir),
                        " --local-dir DIR");
  }
  return absl::NotFoundError(
      absl::StrCat(Printable(dir), ": the model directory does not exist", hint));
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
  if (fd.get() >= 0) return ModelDir(std::move(fd), OpenBlobs(dir));
  if (errno == ENOENT) return NoDirectory(dir);
  if (errno == ENOTDIR) return NotADirectory(dir);
  return InvalidFile(Printable(dir),
                     absl::StrCat("the model directory cannot be opened (errno ", errno, ")"));
}

int ModelDir::OpenBlob(const std::string& name) const {
  std::array<char, 512> link = {};
  const ssize_t length = readlinkat(fd_.get(), name.c_str(), link.data(), link.size());
  absl::string_view target(link.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  const bool is_plain = name.find('/') == std::string::npos;
  if (!is_plain || !absl::ConsumePrefix(&target, "../../blobs/")) return -EXDEV;
  return OpenPlainName(blobs_.get(), std::string(target));
}

absl::StatusOr<FileDescriptor> ModelDir::OpenFile(const std::string& name) const {
  int result = OpenBeneath(fd_.get(), name);
  if (result == -EXDEV || result == -ELOOP) {  // without openat2, every link is ELOOP
    const int blob = blobs_.get() < 0 ? -EXDEV : OpenBlob(name);
    if (blob != -EXDEV) result = blob;
  }
  if (result < 0) return OpenError(name, -result);
  FileDescriptor fd(result);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return OpenError(name, errno);
  if (!S_ISREG(info.st_mode)) return OpenError(name, ENODEV);
  absl::Status status = CheckContent(fd.get(), name);
  if (!status.ok()) return status;
  return fd;
}

absl::StatusOr<std::string> ModelDir::ReadText(const std::string& name, size_t max_bytes) const {
  absl::StatusOr<FileDescriptor> fd = OpenFile(name);
  if (!fd.ok()) return fd.status();
  // Reads up to the end instead of asking for the size first, because the file may change
  // meanwhile.
  std::string text;
  char block[16384];
  while (true) {
    const ssize_t count = read(fd->get(), block, sizeof(block));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return InvalidFile(Printable(name), absl::StrCat("cannot be read (errno ", errno, ")"));
    }
    if (count == 0) return text;
    text.append(block, static_cast<size_t>(count));
    if (text.size() > max_bytes) {
      return InvalidFile(Printable(name), absl::StrCat("larger than ", max_bytes, " bytes"));
    }
  }
}

bool ModelDir::Contains(const std::string& name) const {
  struct stat info = {};
  return fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

absl::Status ModelDir::NoCheckpoint(const std::string& missing) const {
  std::string advice;
  const std::vector<std::string> gguf = NamesIn(fd_.get(), ".", ".gguf");
  const std::vector<std::string> snapshots = NamesIn(fd_.get(), "snapshots", "");
  const std::vector<std::string> pickles = NamesIn(fd_.get(), ".", ".bin");
  if (!gguf.empty()) {
    advice = absl::StrCat(", but a GGUF file: ", AdviceOnGguf(Printable(gguf[0])));
  } else if (!snapshots.empty()) {
    advice = absl::StrCat(", but a repository of a Hugging Face cache: serve its snapshots/",
                          Printable(snapshots.back()));
  } else if (Contains("snapshots") || (Contains("blobs") && Contains("refs"))) {
    advice = ", but an unfinished download of a Hugging Face cache: hf download it again";
  } else if (Contains("params.json") || Contains("consolidated.00.pth")) {
    advice = ", but params.json: take the model's repository in the layout of transformers";
  } else if (!pickles.empty() || Contains("checkpoints")) {
    advice =
        absl::StrCat(", but there is ", pickles.empty() ? "checkpoints" : Printable(pickles[0]),
                     ": foxserve convert THIS DIR, then serve DIR");
  }
  return absl::NotFoundError(absl::StrCat(missing, " in the model directory", advice));
}

}  // namespace fox
