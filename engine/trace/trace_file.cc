// TraceFile: each write replaces the closing brackets by new events and the brackets again.
#include "engine/trace/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

constexpr char kOpening[] =
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
    "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"fox-server\"}}";
constexpr char kClosing[] = "\n]}\n";
constexpr int64_t kRoomToEnd = 256;  // for the closing brackets and the event with the reason

bool WriteAt(int fd, const std::string& text, int64_t offset) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = pwrite(fd, text.data() + done, text.size() - done,
                             static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path, OnEnd on_end,
                                                             int64_t max_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: the file cannot be written: ", std::strerror(errno)));
  }
  std::unique_ptr<TraceFile> file(new TraceFile(fd, max_bytes));
  file->pending_ = kOpening;
  file->Flush();
  if (file->ended_) return absl::InvalidArgumentError("--trace: the file cannot be written");
  file->on_end_ = std::move(on_end);
  return file;
}

TraceFile::~TraceFile() {
  Flush();
  close(fd_);
}

void TraceFile::Add(const std::string& event) {
  if (ended_) return;
  const int64_t bytes = end_ + static_cast<int64_t>(pending_.size() + event.size());
  if (bytes + kRoomToEnd > max_bytes_) return End("the trace is full");
  absl::StrAppend(&pending_, ",\n", event);
}

void TraceFile::Flush() {
  if (pending_.empty()) return;
  if (WriteAt(fd_, pending_ + kClosing, end_)) {
    end_ += static_cast<int64_t>(pending_.size());
    pending_.clear();
    return;
  }
  // A full disk: restore the file as it was before.
  pending_.clear();
  ended_ = true;
  const bool restored =
      ftruncate(fd_, static_cast<off_t>(end_)) == 0 && WriteAt(fd_, kClosing, end_);
  on_end_(restored ? "it cannot be written" : "it cannot be written, and is not whole");
}

void TraceFile::End(const char* reason) {
  absl::StrAppend(&pending_, ",\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_labels\",\"args\":",
                  "{\"labels\":\"", reason, "\"}}");
  ended_ = true;
  Flush();
  on_end_(reason);
}

}  // namespace fox
