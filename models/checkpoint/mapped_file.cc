// MappedFile, and the process's SIGBUS handler that makes truncation of a mapped file harmless: on
// a fault inside one of our mappings it maps a page of zeros there and marks the mapping; any other
// SIGBUS goes to the previous handler.
#include "models/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"

namespace fox {
namespace {

// One mapping registered with the handler. It is free while begin == 0. Written outside the handler
// under g_guard_mutex, read inside it without a lock.
struct Guard {
  std::atomic<uintptr_t> begin;
  std::atomic<uintptr_t> end;
  std::atomic<bool> faulted;
};

constexpr int kMaxGuards = 1024;
Guard g_guards[kMaxGuards];
std::mutex g_guard_mutex;
struct sigaction g_previous_action;
uintptr_t g_page_size = 0;
static_assert(std::atomic<uintptr_t>::is_always_lock_free, "read in a signal handler");
static_assert(std::atomic<bool>::is_always_lock_free, "written in a signal handler");

void OnSigbus(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  auto* const byte = static_cast<char*>(info->si_addr);
  const auto address = reinterpret_cast<uintptr_t>(byte);
  for (Guard& guard : g_guards) {
    const uintptr_t begin = guard.begin.load();
    if (begin == 0 || address < begin || address >= guard.end.load()) continue;
    guard.faulted.store(true);
    void* const page = byte - address % g_page_size;
    if (mmap(page, g_page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        page) {
      errno = saved_errno;
      return;
    }
  }
  // Not ours: a hardware fault repeats under the previous action, a sent signal must be repeated.
  sigaction(SIGBUS, &g_previous_action, nullptr);
  if (info->si_code <= 0) raise(SIGBUS);
  errno = saved_errno;
}

// Returns a slot, or -1 if all are in use.
int AddGuard(const void* data, size_t size) {
  const std::lock_guard<std::mutex> lock(g_guard_mutex);
  static const bool installed = [] {
    g_page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = OnSigbus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &g_previous_action) == 0;
  }();
  if (!installed) return -1;
  for (int slot = 0; slot < kMaxGuards; ++slot) {
    Guard& guard = g_guards[slot];
    if (guard.begin.load() != 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    FOX_CHECK(g_page_size > 0 && begin % g_page_size == 0 && size > 0);
    guard.faulted.store(false);
    guard.end.store((begin + size + g_page_size - 1) / g_page_size * g_page_size);
    guard.begin.store(begin);
    return slot;
  }
  return -1;
}

int64_t ModifiedNs(const struct stat& info) {
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 + info.st_mtim.tv_nsec;
}

absl::Status Failure(const std::string& name, const std::string& problem) {
  return InvalidFile(Printable(name), problem);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Map(FileDescriptor fd, const std::string& name) {
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return Failure(name, "cannot be read");
  MappedFile file;
  file.name_ = name;
  file.modified_ns_ = ModifiedNs(info);
  const auto size = static_cast<size_t>(info.st_size);
  if (size > 0) {  // an empty mapping does not exist
    void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED)
      return Failure(name, absl::StrCat("cannot be mapped (errno ", errno, ")"));
    file.bytes_ = {static_cast<const std::byte*>(data), size};
    file.guard_ = AddGuard(data, size);
    if (file.guard_ < 0) return Failure(name, "too many files are mapped");
    madvise(data, size, MADV_WILLNEED);
  }
  file.fd_ = std::move(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::move(other.fd_)),
      bytes_(std::exchange(other.bytes_, {})),
      modified_ns_(other.modified_ns_),
      guard_(std::exchange(other.guard_, -1)) {}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  if (guard_ >= 0) {  // first, so that no later mapping of these addresses passes for ours
    const std::lock_guard<std::mutex> lock(g_guard_mutex);
    FOX_CHECK(guard_ < kMaxGuards);
    FOX_CHECK(g_guards[guard_].begin.load() == reinterpret_cast<uintptr_t>(bytes_.data()));
    g_guards[guard_].begin.store(0);
  }
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat info = {};
  const bool same = fstat(fd_.get(), &info) == 0 &&
                    static_cast<size_t>(info.st_size) == bytes_.size() &&
                    ModifiedNs(info) == modified_ns_;
  if (!same || (guard_ >= 0 && g_guards[guard_].faulted.load())) {
    return Failure(name_, "changed while it was being read");
  }
  return absl::OkStatus();
}

}  // namespace fox
