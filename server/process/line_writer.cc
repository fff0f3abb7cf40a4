// LineWriter: the queue, and the thread that writes and reports dropped lines.
#include "server/process/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"

namespace fox {

LineWriter::LineWriter(int descriptor, size_t max_bytes, Report report)
    : descriptor_(descriptor), max_bytes_(max_bytes), report_(std::move(report)) {
  FOX_CHECK(descriptor >= 0 && max_bytes > 0 && report_ != nullptr);
  thread_ = std::thread([this] { Loop(); });
}

LineWriter::~LineWriter() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void LineWriter::Add(std::string line) {
  {
    const MutexLock lock(mutex_);
    idle_ = false;
    if (bytes_ + line.size() > max_bytes_) {
      ++dropped_;
    } else {
      bytes_ += line.size();
      queue_.push_back(std::move(line));
    }
  }
  changed_.NotifyAll();
}

bool LineWriter::Flush(double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + SteadyDuration(seconds);
  const MutexLock lock(mutex_);
  while (!idle_) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

void LineWriter::Loop() {
  int64_t told = 0;      // dropped lines that were reported
  bool failing = false;  // the last write failed: the next report waits for the next line
  for (;;) {
    std::vector<std::string> lines;
    int64_t untold = 0;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && queue_.empty() && (failing || told == dropped_)) {
        idle_ = true;
        changed_.NotifyAll();
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
      lines.swap(queue_);
      untold = dropped_ - told;  // dropped while these lines filled the queue
    }
    for (const std::string& line : lines) {
      failing = !Write(line);
      if (failing) ++dropped_;
      FOX_CHECK(bytes_ >= line.size());
      bytes_ -= line.size();
    }
    if (failing || untold == 0) continue;
    failing = !Write(report_(untold));
    if (!failing) told += untold;
  }
}

// Writes a line by one call if possible, so that lines of several processes do not mix. True if all
// of it was written.
bool LineWriter::Write(const std::string& text) {
  const std::string whole = (torn_ ? "\n" : "") + text;
  size_t done = 0;
  while (done < whole.size()) {
    const ssize_t n = write(descriptor_, whole.data() + done, whole.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {  // another process made it non-blocking
      pollfd ready{descriptor_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      torn_ = torn_ || done > 0;
      return false;
    }
  }
  torn_ = false;
  return true;
}

}  // namespace fox
